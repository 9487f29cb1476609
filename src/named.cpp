#include "qpair/named.hpp"

namespace qpair {

std::optional<std::string_view> arm_name(PollTarget value) {
  switch (value) {
    case PollTarget::Send:
      return "Send";
    case PollTarget::Recv:
      return "Recv";
    case PollTarget::Both:
      return "Both";
  }
  return {};
}

std::optional<std::string_view> arm_name(Signal value) {
  switch (value) {
    case Signal::No:
      return "No";
    case Signal::Yes:
      return "Yes";
  }
  return {};
}

std::optional<std::string_view> arm_name(Format value) {
  switch (value) {
    case Format::Json:
      return "Json";
    case Format::Cbor:
      return "Cbor";
  }
  return {};
}

std::optional<std::string_view> arm_name(LinkLayer value) {
  switch (value) {
    case LinkLayer::Unspecified:
      return "Unspecified";
    case LinkLayer::InfiniBand:
      return "InfiniBand";
    case LinkLayer::Ethernet:
      return "Ethernet";
  }
  return {};
}

std::optional<std::string_view> arm_name(GidType value) {
  switch (value) {
    case GidType::InfiniBand:
      return "InfiniBand";
    case GidType::RoceV1:
      return "RoceV1";
    case GidType::RoceV2:
      return "RoceV2";
  }
  return {};
}

std::optional<std::string_view> arm_name(ErrorCode value) {
  if (value > ErrorCode::system) return {};
  return name_of(value);
}

}  // namespace qpair
