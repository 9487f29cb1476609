#pragma once
// How a SEND or RDMA WRITE is cut into packets: the opcode of each, as a reliable connection has it
// (on_service() gives that of another service).

#include "softnic/roce/host.hpp"
#include "softnic/roce/opcode.hpp"

namespace qpair::softnic::roce {

constexpr bool is_write(Operation operation) {
  return operation == Operation::Write || operation == Operation::WriteImm;
}

constexpr Opcode send_opcode(Operation operation, bool first, bool last) {
  if (first && last) {
    if (operation == Operation::SendImm) return Opcode::SendOnlyImm;
    return operation == Operation::SendInvalidate ? Opcode::SendOnlyInvalidate : Opcode::SendOnly;
  }
  if (first) return Opcode::SendFirst;
  if (!last) return Opcode::SendMiddle;
  if (operation == Operation::SendImm) return Opcode::SendLastImm;
  return operation == Operation::SendInvalidate ? Opcode::SendLastInvalidate : Opcode::SendLast;
}

constexpr Opcode write_opcode(Operation operation, bool first, bool last) {
  const bool immediate = operation == Operation::WriteImm;
  if (first && last) return immediate ? Opcode::WriteOnlyImm : Opcode::WriteOnly;
  if (first) return Opcode::WriteFirst;
  if (!last) return Opcode::WriteMiddle;
  return immediate ? Opcode::WriteLastImm : Opcode::WriteLast;
}

constexpr Opcode message_opcode(Operation operation, bool first, bool last) {
  return is_write(operation) ? write_opcode(operation, first, last) : send_opcode(operation, first, last);
}

}  // namespace qpair::softnic::roce
