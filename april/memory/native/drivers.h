// What a saver asks of a runtime: addresses and physical memory apart, so that addresses outlive what is behind them.
// A driver keeps no state machine of its own: saver.cpp decides what is called when.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace april {

// The outcome of one call into a runtime.
struct Status {
  bool failed = false;
  bool out_of_memory = false;
  bool still_mapped = false;  // a mapping that failed and could not be undone
  const char* call = "";
  long code = 0;
  std::string text;

  static Status fault(const char* call, long code, std::string text, bool out_of_memory = false) {
    return {true, out_of_memory, false, call, code, std::move(text)};
  }
};

class Driver {
 public:
  virtual ~Driver() = default;

  // Makes the device current for this thread, and what was current before so again.
  virtual Status enter() { return {}; }
  virtual Status leave() { return {}; }

  virtual size_t granularity() const = 0;
  virtual Status reserve(size_t size, char** address) = 0;
  virtual Status create(size_t size, uint64_t* handle) = 0;
  virtual Status map(char* address, size_t size, uint64_t handle) = 0;
  virtual Status unmap(char* address, size_t size) = 0;
  virtual Status release(uint64_t handle) = 0;
  virtual Status free_address(char* address, size_t size) = 0;
  virtual Status info(size_t* free, size_t* total) = 0;
  virtual Status copy_out(void* host, const char* address, size_t size) = 0;
  virtual Status copy_in(char* address, const void* host, size_t size) = 0;
  virtual Status pinned(size_t size, void** host) = 0;
  virtual Status unpin(void* host) = 0;
  virtual Status synchronize() = 0;

  // For a watchdog, read without a lock: the call that is running now (null between calls), and how many have begun.
  std::atomic<const char*> running{nullptr};
  std::atomic<uint64_t> begun{0};
};

// Names the running call for as long as it lives.
class Running {
 public:
  Running(Driver* driver, const char* call) : driver_(driver) {
    driver_->running = call;
    ++driver_->begun;
  }
  ~Running() { driver_->running = nullptr; }

 private:
  Driver* driver_;
};

// memfd and mmap; `limit` bytes at most are created at once (0: what the machine has available).
std::unique_ptr<Driver> open_host(size_t limit, Status* status);

// `runtime` is "hip" or "cuda"; `library` a path, or empty for the names under which the runtime installs it.
std::unique_ptr<Driver> open_gpu(const std::string& runtime, const std::string& library, int device, Status* status);

}  // namespace april
