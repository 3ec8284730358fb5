#include "backup.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace april {
namespace {

constexpr size_t PIECE = 16u << 20;

Status system_fault(const char* call, int code) {
  return Status::fault(call, code, strerror(code), code == ENOMEM || code == ENOSPC || code == EDQUOT);
}

int unlinked_file(const std::string& folder) {
  std::string path = folder + "/april-memory-XXXXXX";
  std::vector<char> name(path.c_str(), path.c_str() + path.size() + 1);
  int file = mkostemp(name.data(), O_CLOEXEC);
  if (file >= 0) unlink(name.data());
  return file;
}

}  // namespace

Status Backup::make(Driver& driver, Keep kind, size_t size, const std::string& folder, Backup* made) {
  *made = Backup{};
  made->kind = kind;
  made->size = size;
  if (kind == Keep::NOTHING || !size) return {};
  if (kind == Keep::PINNED) {
    void* host = nullptr;
    Status got = driver.pinned(size, &host);
    made->data = static_cast<char*>(host);
    return got;
  }
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (kind == Keep::FILE) {
    made->file = unlinked_file(folder);
    if (made->file < 0) return system_fault("mkostemp", errno);
    // Blocks are taken now: a full disk is a refusal here, and a SIGBUS in the middle of the copy otherwise.
    if (int code = posix_fallocate(made->file, 0, static_cast<off_t>(size))) {
      close(made->file);
      made->file = -1;
      return system_fault("posix_fallocate", code);
    }
    flags = MAP_SHARED;
  }
  void* got = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, made->file, 0);
  if (got == MAP_FAILED) {
    int code = errno;
    if (made->file >= 0) close(made->file);
    made->file = -1;
    return system_fault("mmap", code);
  }
  made->data = static_cast<char*>(got);
  return {};
}

Status Backup::drop(Driver& driver) {
  Status got;
  if (data && kind == Keep::PINNED) got = driver.unpin(data);
  else if (data && munmap(data, size)) got = system_fault("munmap", errno);
  if (got.failed) return got;
  if (file >= 0) close(file);
  *this = Backup{};
  return {};
}

Status Backup::save(Driver& driver, size_t at, const char* address, size_t bytes) {
  for (size_t done = 0; done < bytes; done += PIECE) {
    size_t piece = std::min(PIECE, bytes - done);
    Status got = driver.copy_out(data + at + done, address + done, piece);
    if (got.failed) return got;
    settle(at + done, piece);
  }
  return {};
}

Status Backup::load(Driver& driver, size_t at, char* address, size_t bytes) {
  for (size_t done = 0; done < bytes; done += PIECE) {
    size_t piece = std::min(PIECE, bytes - done);
    Status got = driver.copy_in(address + done, data + at + done, piece);
    if (got.failed) return got;
    settle(at + done, piece);
  }
  return {};
}

// Pages of a shared file mapping leave the process; the file keeps what was written to them.
void Backup::settle(size_t at, size_t bytes) {
  if (kind != Keep::FILE) return;
  size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  size_t first = at / page * page;
  madvise(data + first, at + bytes - first, MADV_DONTNEED);
}

}  // namespace april
