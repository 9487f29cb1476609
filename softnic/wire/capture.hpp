#pragma once
// Records what passes through any link into a pcapng file that Wireshark decodes as RoCEv2.
//
// The NICs of many processes may share one file: blocks are written whole, several at a time, by one write()
// to a descriptor that appends. Each packet appears once. Its sender records it; the receiver does so only
// when the sender is not recording into the same file, which it finds out from a socket name that every
// recorder holds.

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "softnic/wire/descriptor.hpp"
#include "softnic/wire/forwarding_link.hpp"
#include "softnic/wire/pages.hpp"

namespace qpair::softnic::wire {

class CaptureFile {
 public:
  // Creates the file or goes on with one that an emulated NIC began. The error is a sentence.
  static tl::expected<std::unique_ptr<CaptureFile>, std::string> open(const std::string& path,
                                                                      const Endpoint& local);
  ~CaptureFile();
  CaptureFile(const CaptureFile&) = delete;
  CaptureFile& operator=(const CaptureFile&) = delete;

  // Buffers one packet.
  void record(const Frame& frame);
  // Writes what is buffered. On failure says so and ends the capture.
  void flush();
  // Whether the NIC with that address records into this file as well.
  bool is_recorded_by(const Endpoint& other, TimePoint now);

  // In a child of fork().
  void abandon();

  bool is_open() const { return static_cast<bool>(file_); }

 private:
  static constexpr std::size_t kBuffer = 512U << 10;
  struct Peer {
    Endpoint endpoint;
    TimePoint asked;
    bool recording = false;
  };

  CaptureFile(Descriptor file, std::string path);
  tl::expected<void, std::string> begin();
  void announce(const Endpoint& local);
  void end(const std::string& reason);
  bool is_still_ours() const;

  Descriptor file_;
  std::string path_;
  pid_t owner_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  Descriptor announcement_;  // bound to a name that says who records where
  Descriptor question_;
  std::array<Peer, 64> peers_{};
  Pages buffer_;
  std::size_t used_ = 0;
};

class Capture final : public ForwardingLink {
 public:
  Capture(std::unique_ptr<Link> inner, std::unique_ptr<CaptureFile> file)
      : ForwardingLink(std::move(inner)), file_(std::move(file)) {}

  std::span<std::byte> reserve(const Endpoint& destination, std::size_t size) override;
  void commit() override;
  void flush() override;
  std::size_t poll(const Receiver& receiver, std::size_t limit, TimePoint now) override;
  void abandon() override;

 private:
  std::unique_ptr<CaptureFile> file_;
  Frame open_;  // the reservation
};

}  // namespace qpair::softnic::wire
