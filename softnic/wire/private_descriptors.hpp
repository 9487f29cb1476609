#pragma once
// Which descriptors of the process are the emulated NIC's own. A program neither opened nor may close them,
// which hooks/ sees to by asking here. Lock-free.

namespace qpair::softnic::wire {

// Numbers from here on are not tracked.
inline constexpr int kPrivateDescriptorLimit = 1 << 16;

void set_private_descriptor(int fd);
void unset_private_descriptor(int fd);
bool is_private_descriptor(int fd);

// Where to put them: three quarters up the program's limit, so that select() and small tables of the
// program's are left alone.
int lowest_private_descriptor();

}  // namespace qpair::softnic::wire
