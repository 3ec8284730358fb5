// The C interface: opaque savers, plain structs, no exceptions out. And the two symbols of PyTorch's pluggable allocator.
#include <sys/types.h>

#include <cstdio>
#include <cstring>
#include <exception>

#include "saver.h"

#define API extern "C" __attribute__((visibility("default")))

using april::Failure;
using april::Keep;
using april::Saver;
using april::Status;

struct AprilError {
  char operation[16], tag[64], call[64], text[256];
  int64_t code;
  uint64_t wanted, free;
  int32_t out_of_memory;
};

namespace {

constexpr int DEVICES = 64;
Saver* attached[DEVICES];
thread_local std::string region_tag = "default";
thread_local Keep region_keep = Keep::NOTHING;

template <size_t N>
void put(char (&field)[N], const std::string& text) {
  snprintf(field, N, "%s", text.c_str());
}

int report(const Failure& failure, AprilError* error) {
  if (!failure.status.failed) return 0;
  *error = AprilError{};
  put(error->operation, failure.operation);
  put(error->tag, failure.tag);
  put(error->call, failure.status.call);
  put(error->text, failure.status.text);
  error->code = failure.status.code;
  error->wanted = failure.wanted;
  error->free = failure.free;
  error->out_of_memory = failure.status.out_of_memory;
  return 1;
}

template <typename Body>
int guarded(const char* operation, AprilError* error, Body body) {
  try {
    return report(body(), error);
  } catch (const std::exception& caught) {  // the host has no memory left for our own bookkeeping
    return report({Status::fault("new", 0, caught.what(), true), operation, "", 0, 0}, error);
  }
}

Saver* saver(void* handle) { return static_cast<Saver*>(handle); }

}  // namespace

API void* april_memory_open(const char* driver, const char* library, int device, size_t limit, size_t chunk,
                            size_t extent_limit, const char* folder, AprilError* error) {
  Saver* made = nullptr;
  guarded("open", error, [&]() -> Failure {
    Status status;
    auto opened = strcmp(driver, "host") ? april::open_gpu(driver, library, device, &status)
                                         : april::open_host(limit, &status);
    if (!status.failed) made = new Saver(std::move(opened), chunk, extent_limit, folder);
    return {status, "open", "", 0, 0};
  });
  return made;
}

API void april_memory_close(void* handle) {
  for (auto& each : attached) {
    if (each == handle) each = nullptr;
  }
  delete saver(handle);
}

API int april_memory_allocate(void* handle, const char* tag, int keep, size_t size, void** block, AprilError* error) {
  return guarded("allocate", error, [&] { return saver(handle)->allocate(tag, static_cast<Keep>(keep), size, block); });
}
API int april_memory_free(void* handle, void* block, AprilError* error) {
  return guarded("free", error, [&] { return saver(handle)->free(block); });
}
API int april_memory_pause(void* handle, const char* tag, april::Moved* moved, AprilError* error) {
  return guarded("pause", error, [&] { return saver(handle)->pause(tag, moved); });
}
API int april_memory_resume(void* handle, const char* tag, april::Moved* moved, AprilError* error) {
  return guarded("resume", error, [&] { return saver(handle)->resume(tag, moved); });
}
API int april_memory_compact(void* handle, april::Moved* moved, AprilError* error) {
  return guarded("compact", error, [&] { return saver(handle)->compact(moved); });
}
API int april_memory_info(void* handle, size_t* free, size_t* total, AprilError* error) {
  return guarded("info", error, [&] { return saver(handle)->info(free, total); });
}
API int april_memory_copy(void* handle, void* block, void* host, size_t size, int out, AprilError* error) {
  return guarded("copy", error, [&] { return saver(handle)->copy(block, host, size, out); });
}

API void* april_memory_backup(void* handle, const void* address, size_t size) {
  return saver(handle)->backup_of(address, size);
}
// 0: not of this saver, 1: active, 2: paused
API int april_memory_state(void* handle, const void* address) { return saver(handle)->state(address); }
API void april_memory_stats(void* handle, const char* tag, april::Stats* stats) {
  std::string name = tag ? tag : "";
  *stats = saver(handle)->stats(tag ? &name : nullptr);
}
// The names joined by '\n'; returns the bytes needed with the final zero, and writes where they fit.
API size_t april_memory_tags(void* handle, char* names, size_t room) {
  std::string joined;
  for (auto& tag : saver(handle)->tags()) joined += (joined.empty() ? "" : "\n") + tag;
  if (joined.size() < room) memcpy(names, joined.c_str(), joined.size() + 1);
  return joined.size() + 1;
}
API void april_memory_clean(void* handle, const char* tag) { saver(handle)->clean(tag); }
API void april_memory_set(void* handle, size_t margin, int retain) { saver(handle)->set(margin, retain); }
API size_t april_memory_granularity(void* handle) { return saver(handle)->driver().granularity(); }
API const char* april_memory_running(void* handle) { return saver(handle)->driver().running; }
API uint64_t april_memory_begun(void* handle) { return saver(handle)->driver().begun; }
API void april_memory_last_fault(void* handle, char* text, size_t room) {
  snprintf(text, room, "%s", saver(handle)->last_fault().c_str());
}

// PyTorch's allocator: memory of a device comes from the saver attached to it, under this thread's region.
API int april_memory_attach(void* handle, int device) {
  if (device < 0 || device >= DEVICES) return 1;
  attached[device] = saver(handle);
  return 0;
}
API void april_memory_region(const char* tag, int keep) {
  region_tag = tag;
  region_keep = static_cast<Keep>(keep);
}
API void* april_torch_malloc(ssize_t size, int device, void*) {
  AprilError error;
  void* block = nullptr;
  if (device < 0 || device >= DEVICES || !attached[device] || size < 0) return nullptr;
  // A null pointer is what PyTorch turns into its own error of out of memory, after it has emptied its caches.
  int failed = guarded("allocate", &error, [&] {
    return attached[device]->allocate(region_tag, region_keep, static_cast<size_t>(size), &block);
  });
  if (failed && !error.out_of_memory) fprintf(stderr, "april.memory: %s: %s (%ld)\n", error.call, error.text, (long)error.code);
  return failed ? nullptr : block;
}
API void april_torch_free(void* block, ssize_t, int device, void*) {
  AprilError error;
  if (!block || device < 0 || device >= DEVICES || !attached[device]) return;
  if (guarded("free", &error, [&] { return attached[device]->free(block); })) {
    fprintf(stderr, "april.memory: free: %s\n", error.text);
  }
}
