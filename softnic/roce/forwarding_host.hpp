#pragma once
// A host that stands in front of another and passes everything on: for transports that answer some of the
// questions themselves.

#include "softnic/roce/host.hpp"

namespace qpair::softnic::roce {

class ForwardingHost : public Host {
 public:
  explicit ForwardingHost(Host& host) : host_(host) {}

  bool next_send(SendRequest& out) override { return host_.next_send(out); }
  tl::expected<AddressVector, Refusal> address(const SendRequest& request) override {
    return host_.address(request);
  }
  Check gather(const SendRequest& request, std::uint64_t offset, std::span<std::byte> to) override {
    return host_.gather(request, offset, to);
  }
  Check scatter(const SendRequest& request, std::uint64_t offset, std::span<const std::byte> from) override {
    return host_.scatter(request, offset, from);
  }
  void transmitting(const SendRequest& request) override { host_.transmitting(request); }
  void send_done(const SendRequest& request) override { host_.send_done(request); }
  void send_failed(const SendRequest& request, const Refusal& why) override {
    host_.send_failed(request, why);
  }
  Check select_srq(std::uint32_t srqn) override { return host_.select_srq(srqn); }
  bool next_receive(ReceiveRequest& out) override { return host_.next_receive(out); }
  Check scatter_receive(const ReceiveRequest& request, std::uint64_t offset,
                        std::span<const std::byte> from) override {
    return host_.scatter_receive(request, offset, from);
  }
  void receive_done(const ReceiveRequest& request, const Received& what) override {
    host_.receive_done(request, what);
  }
  void receive_failed(const ReceiveRequest& request, const Refusal& why) override {
    host_.receive_failed(request, why);
  }
  void receive_lost(const ReceiveRequest& request, const Refusal& why) override {
    host_.receive_lost(request, why);
  }
  Check check_remote(RemoteAccess access, std::uint32_t rkey, std::uint64_t address,
                     std::uint64_t length) override {
    return host_.check_remote(access, rkey, address, length);
  }
  Check write(std::uint32_t rkey, std::uint64_t address, std::span<const std::byte> from) override {
    return host_.write(rkey, address, from);
  }
  Check read(std::uint32_t rkey, std::uint64_t address, std::span<std::byte> to) override {
    return host_.read(rkey, address, to);
  }
  Check compare_swap(std::uint32_t rkey, std::uint64_t address, std::uint64_t compare, std::uint64_t swap,
                     std::uint64_t& original) override {
    return host_.compare_swap(rkey, address, compare, swap, original);
  }
  Check fetch_add(std::uint32_t rkey, std::uint64_t address, std::uint64_t add,
                  std::uint64_t& original) override {
    return host_.fetch_add(rkey, address, add, original);
  }
  Check invalidate(std::uint32_t rkey) override { return host_.invalidate(rkey); }
  void responder_failed(ibv_event_type event, const Refusal& why) override {
    host_.responder_failed(event, why);
  }
  void raise(ibv_event_type event) override { host_.raise(event); }
  void dropped(const std::string& sentence) override { host_.dropped(sentence); }

 private:
  Host& host_;
};

}  // namespace qpair::softnic::roce
