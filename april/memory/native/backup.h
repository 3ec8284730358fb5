// Where the contents of paused memory wait on the host.
#pragma once

#include <string>

#include "drivers.h"

namespace april {

enum class Keep : int { NOTHING = 0, PINNED = 1, MMAP = 2, FILE = 3 };

// One buffer. A FILE one is an unlinked file: its pages are given back to the kernel piece by piece while it is written
// or read, so that it adds nothing to the resident memory. Dropped by drop(), not by a destructor: unpinning can fail.
struct Backup {
  Keep kind = Keep::NOTHING;
  char* data = nullptr;
  size_t size = 0;
  int file = -1;

  static Status make(Driver& driver, Keep kind, size_t size, const std::string& folder, Backup* made);
  Status drop(Driver& driver);
  Status save(Driver& driver, size_t at, const char* address, size_t size);
  Status load(Driver& driver, size_t at, char* address, size_t size);

 private:
  void settle(size_t at, size_t size);
};

}  // namespace april
