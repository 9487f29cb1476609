#include "softnic/explain/caller.hpp"

#include <cxxabi.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

namespace qpair::softnic::explain {
namespace {

constexpr int kMostFrames =
    48;  // from the system call up to the program; libibverbs and libmlx5 have six between
constexpr std::size_t kLongestName = 120;

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

// ---- Modules ------------------------------------------------------------------------------------
// dladdr() would say all this, but takes the lock that dlopen() holds while constructors run: a constructor
// that waits for the device would wait for us, and we for it. dl_iterate_phdr()'s lock is held for moments
// only.

struct Module {
  std::uintptr_t address = 0;  // asked for
  std::uintptr_t base = 0;
  std::string name;  // of the file; empty: not found
  std::string symbol;
  std::uintptr_t symbol_offset = 0;
};

struct Symbols {
  const ElfW(Sym) * table = nullptr;
  const char* names = nullptr;
  const std::uint32_t* gnu_hash = nullptr;
  const std::uint32_t* hash = nullptr;

  // The dynamic symbol table does not say its own length; the hash tables do.
  std::uint32_t count() const {
    if (hash != nullptr) return hash[1];
    if (gnu_hash == nullptr) return 0;
    const std::uint32_t buckets = gnu_hash[0];
    const std::uint32_t first = gnu_hash[1];
    const std::uint32_t* const bucket = gnu_hash + 4 + gnu_hash[2] * (sizeof(ElfW(Addr)) / 4);
    const std::uint32_t* const chain = bucket + buckets;
    std::uint32_t last = 0;
    for (std::uint32_t i = 0; i < buckets; ++i) last = std::max(last, bucket[i]);
    if (last < first) return 0;
    while ((chain[last - first] & 1) == 0) ++last;
    return last + 1;
  }
};

Symbols symbols_of(const dl_phdr_info& info, const ElfW(Dyn) * entry) {
  Symbols symbols;
  for (; entry->d_tag != DT_NULL; ++entry) {
    // The linker has relocated these in place, except where it maps them read-only (the vDSO).
    const auto at =
        entry->d_un.d_ptr < info.dlpi_addr ? info.dlpi_addr + entry->d_un.d_ptr : entry->d_un.d_ptr;
    switch (entry->d_tag) {
      case DT_SYMTAB:
        symbols.table = reinterpret_cast<const ElfW(Sym)*>(at);
        break;
      case DT_STRTAB:
        symbols.names = reinterpret_cast<const char*>(at);
        break;
      case DT_GNU_HASH:
        symbols.gnu_hash = reinterpret_cast<const std::uint32_t*>(at);
        break;
      case DT_HASH:
        symbols.hash = reinterpret_cast<const std::uint32_t*>(at);
        break;
      default:
        break;
    }
  }
  return symbols;
}

void find_symbol(const Symbols& symbols, Module& module) {
  if (symbols.table == nullptr || symbols.names == nullptr) return;
  const std::uintptr_t offset = module.address - module.base;
  const std::uint32_t count = symbols.count();
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto& symbol = symbols.table[i];
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF) continue;
    if (offset < symbol.st_value || offset >= symbol.st_value + symbol.st_size) continue;
    module.symbol = symbols.names + symbol.st_name;
    module.symbol_offset = offset - symbol.st_value;
    return;
  }
}

int look_at_module(dl_phdr_info* info, std::size_t /*size*/, void* data) noexcept {
  auto& module = *static_cast<Module*>(data);
  bool inside = false;
  const ElfW(Dyn)* dynamic = nullptr;
  for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const std::uintptr_t start = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD) inside |= module.address - start < header.p_memsz;
    if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(start);
  }
  if (!inside) return 0;
  try {
    module.base = info->dlpi_addr;
    module.name = base_name(info->dlpi_name);
    if (module.name.empty()) module.name = program_invocation_short_name;
    if (dynamic != nullptr) find_symbol(symbols_of(*info, dynamic), module);
  } catch (const std::exception&) {  // out of memory: less is known
  }
  return 1;
}

Module module_of(std::uintptr_t address) {
  Module module;
  module.address = address;
  ::dl_iterate_phdr(look_at_module, &module);
  return module;
}

// The device's own libraries, and sanitizers' runtimes, whose ioctl() comes before the C library's.
bool is_part_of_the_device(std::string_view name) {
  constexpr std::string_view kSkipped[] = {"libqpair-softnic", "libibverbs", "libmlx5",
                                           "librdmacm",        "libasan",    "libtsan"};
  return std::ranges::any_of(kSkipped,
                             [name](std::string_view skipped) { return name.starts_with(skipped); });
}

std::string describe(const Module& module) {
  if (module.symbol.empty()) return fmt::format("{}+{:#x}", module.name, module.address - module.base);
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> readable(
      abi::__cxa_demangle(module.symbol.c_str(), nullptr, nullptr, &status), std::free);
  std::string name = readable ? readable.get() : module.symbol;
  if (name.size() > kLongestName) name = name.substr(0, kLongestName) + "…";
  return fmt::format("{}+{:#x} ({})", name, module.symbol_offset, module.name);
}

// ---- Places that are known ----------------------------------------------------------------------
// Open addressing; entries are put in once and stay. No mutex: a child of fork() would inherit it locked.

struct Place {
  std::uintptr_t address;
  bool skipped;  // belongs to the device's own libraries
  std::string name;
};

constexpr std::size_t kPlaces = 2048;  // a program registers memory in few places; those beyond have no name
constinit std::array<std::atomic<const Place*>, kPlaces> places{};

const Place* place_at(std::uintptr_t address) {
  const std::size_t start = (address * 0x9e37'79b9'7f4a'7c15U) >> 53;
  for (std::size_t i = 0; i < kPlaces / 2; ++i) {
    std::atomic<const Place*>& slot = places.at((start + i) % kPlaces);
    const Place* known = slot.load(std::memory_order_acquire);
    if (known == nullptr) {
      const Module module = module_of(address);
      auto made = std::make_unique<Place>(
          Place{address, module.name.empty() || is_part_of_the_device(module.name), describe(module)});
      if (slot.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) return made.release();
    }
    if (known->address == address) return known;
  }
  return nullptr;
}

struct Walk {
  int frames = 0;
  const char* found = nullptr;
};

_Unwind_Reason_Code look_at_frame(_Unwind_Context* context, void* data) noexcept {
  auto& walk = *static_cast<Walk*>(data);
  int before = 0;
  const std::uintptr_t address = _Unwind_GetIPInfo(context, &before);
  if (address == 0 || ++walk.frames > kMostFrames) return _URC_END_OF_STACK;
  try {
    // A return address may belong to the next function already; the call itself does not.
    const Place* const place = place_at(before != 0 ? address : address - 1);
    if (place == nullptr) return _URC_END_OF_STACK;
    if (place->skipped) return _URC_NO_REASON;
    walk.found = place->name.c_str();
  } catch (const std::exception&) {  // out of memory: nobody is named
  }
  return _URC_END_OF_STACK;
}

}  // namespace

const char* caller() noexcept {
  Walk walk;
  _Unwind_Backtrace(look_at_frame, &walk);
  return walk.found;
}

}  // namespace qpair::softnic::explain
