// Host memory that is released for real: one sparse memfd is the physical memory, a hole punched in it gives pages back.
// Addresses are private PROT_NONE mappings, over which parts of the file are mapped; a touch while paused faults.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <unordered_map>

#include "drivers.h"

namespace april {
namespace {

constexpr uint64_t FILE_BYTES = 1ull << 62;  // sparse; offsets are never used twice

Status system_fault(const char* call) {
  int code = errno;
  return Status::fault(call, code, strerror(code), code == ENOMEM || code == ENOSPC);
}

class Host : public Driver {
 public:
  Host(int file, size_t limit) : file_(file), limit_(limit), page_(sysconf(_SC_PAGESIZE)) {}
  ~Host() override { close(file_); }

  size_t granularity() const override { return page_; }

  Status reserve(size_t size, char** address) override {
    Running call(this, "mmap");
    void* got = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) return system_fault("mmap");
    *address = static_cast<char*>(got);
    return {};
  }

  // Pages come with the first touch; whether there are enough is asked here, where a refusal can still be reported.
  Status create(size_t size, uint64_t* handle) override {
    size_t free = 0, total = 0;
    Status known = info(&free, &total);
    if (known.failed) return known;
    if (size > free || FILE_BYTES - next_ < size) return Status::fault("memfd", ENOMEM, strerror(ENOMEM), true);
    *handle = next_;
    sizes_[next_] = size;
    next_ += size;
    in_use_ += size;
    return {};
  }

  Status map(char* address, size_t size, uint64_t handle) override {
    Running call(this, "mmap");
    void* got = mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, static_cast<off_t>(handle));
    return got == MAP_FAILED ? system_fault("mmap") : Status{};
  }

  Status unmap(char* address, size_t size) override {
    Running call(this, "mmap");
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    return mmap(address, size, PROT_NONE, flags, -1, 0) == MAP_FAILED ? system_fault("mmap") : Status{};
  }

  Status release(uint64_t handle) override {
    Running call(this, "fallocate");
    auto found = sizes_.find(handle);
    if (found == sizes_.end()) return Status::fault("fallocate", EINVAL, "no such handle");
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (fallocate(file_, mode, static_cast<off_t>(handle), static_cast<off_t>(found->second))) {
      return system_fault("fallocate");
    }
    in_use_ -= found->second;
    sizes_.erase(found);
    return {};
  }

  Status free_address(char* address, size_t size) override {
    Running call(this, "munmap");
    return munmap(address, size) ? system_fault("munmap") : Status{};
  }

  // Without a limit: what the kernel says is available, less what was created and not touched yet.
  Status info(size_t* free, size_t* total) override {
    if (limit_) {
      *total = limit_;
      *free = limit_ > in_use_ ? limit_ - in_use_ : 0;
      return {};
    }
    struct stat file {};
    if (fstat(file_, &file)) return system_fault("fstat");
    size_t touched = static_cast<size_t>(file.st_blocks) * 512, untouched = in_use_ > touched ? in_use_ - touched : 0;
    FILE* table = fopen("/proc/meminfo", "r");
    if (!table) return system_fault("fopen");
    size_t available = 0, all = 0;
    for (char line[128]; fgets(line, sizeof line, table);) {
      sscanf(line, "MemTotal: %zu", &all);
      sscanf(line, "MemAvailable: %zu", &available);
    }
    fclose(table);
    *total = all * 1024;
    *free = available * 1024 > untouched ? available * 1024 - untouched : 0;
    return {};
  }

  Status copy_out(void* host, const char* address, size_t size) override {
    Running call(this, "memcpy");
    memcpy(host, address, size);
    return {};
  }
  Status copy_in(char* address, const void* host, size_t size) override {
    Running call(this, "memcpy");
    memcpy(address, host, size);
    return {};
  }
  Status pinned(size_t, void**) override { return Status::fault("mlock", ENOTSUP, "host memory needs no pinned backup"); }
  Status unpin(void*) override { return Status::fault("munlock", ENOTSUP, "host memory needs no pinned backup"); }
  Status synchronize() override { return {}; }

 private:
  int file_;
  size_t limit_, page_, in_use_ = 0;
  uint64_t next_ = 0;
  std::unordered_map<uint64_t, size_t> sizes_;
};

}  // namespace

std::unique_ptr<Driver> open_host(size_t limit, Status* status) {
  int file = memfd_create("april", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(FILE_BYTES))) {
    *status = system_fault(file < 0 ? "memfd_create" : "ftruncate");
    if (file >= 0) close(file);
    return nullptr;
  }
  return std::make_unique<Host>(file, limit);
}

}  // namespace april
