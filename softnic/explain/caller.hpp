#pragma once
// Who called: so that a sentence about a memory region can say where the program registered it.

namespace qpair::softnic::explain {

// The nearest caller that is neither the emulated NIC nor a library of rdma-core: "server+0x12ab", which
// `addr2line -fe server 0x12ab` resolves to a line, or "uct_ib_mem_reg+0x40 (libuct_ib.so.0)" where the
// library exports a name. Null when there is none to be found, as in a program whose frames cannot be
// unwound.
//
// Costs a walk of a few frames, as throwing an exception through them would; the name is made up once for
// each place and lives for ever. Takes none of the dynamic linker's locks that a library's constructor might
// hold. Not for the data path, and not in signal handlers.
const char* caller() noexcept;

}  // namespace qpair::softnic::explain
