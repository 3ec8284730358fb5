// A stand-in for libamdhip64.so or libcuda.so, for tests and the self-test: the calls that driver_gpu.cpp makes, over
// memfd and mmap. Strict where the runtimes are: sizes are multiples of MI300's granularity, a range is unmapped as it
// was mapped, nothing is released or freed twice. Any call can be made to fail, or to take long, at its n-th use.
// Compiled with -DHIP for HIP's names, without for CUDA's. It shows nothing of a device's speed, of streams, or of graphs.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#define API extern "C" __attribute__((visibility("default")))

namespace {

constexpr size_t GRANULARITY = 2u << 20;
constexpr int INVALID = 1, OUT_OF_MEMORY = 2;
constexpr long EVERY = -1;

struct Handle {
  size_t offset, size;
  int mappings;
  bool released;
};
struct Mapping { size_t size; uint64_t handle; };
struct Fault { long at, code, delay_ms; };

std::recursive_mutex lock;
std::map<uint64_t, Handle> handles;
std::map<char*, Mapping> mappings;
std::map<char*, size_t> reservations, pins;
std::map<std::string, long> calls;
std::map<std::string, Fault> faults;
size_t total = 1u << 30, in_use = 0, hoarded = 0, next_offset = 0;
uint64_t next_handle = 1;
bool hoards = false;  // releases memory and does not give it back: ROCm 6.4.0 and 7.2
int file = -1;

// "NAME:CALL:CODE" in the environment, and the size: for processes that a test does not hold.
void configure() {
  if (file >= 0) return;
  file = memfd_create("emulated-gpu", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, 1ll << 50)) abort();
  if (const char* bytes = getenv("APRIL_EMULATED_TOTAL")) total = strtoull(bytes, nullptr, 10);
  if (const char* said = getenv("APRIL_EMULATED_FAIL")) {
    std::string text = said;
    size_t first = text.find(':'), second = text.find(':', first + 1);
    if (second == std::string::npos) abort();
    faults[text.substr(0, first)] = {atol(text.c_str() + first + 1), atol(text.c_str() + second + 1), 0};
  }
}

// Counts a call; what it should answer instead of doing its work, or 0.
int gate(const char* name) {
  long delay = 0, code = 0;
  {
    std::lock_guard<std::recursive_mutex> held(lock);
    configure();
    long count = ++calls[name];
    auto found = faults.find(name);
    if (found != faults.end() && (found->second.at == count || found->second.at == EVERY)) {
      delay = found->second.delay_ms, code = found->second.code;
    }
  }
  if (delay) usleep(static_cast<useconds_t>(delay) * 1000);
  return static_cast<int>(code);
}

bool whole(size_t size) { return size && size % GRANULARITY == 0; }

bool reserved(char* address, size_t size) {
  auto after = reservations.upper_bound(address);
  if (after == reservations.begin()) return false;
  --after;
  return address + size <= after->first + after->second;
}

bool overlaps(char* address, size_t size) {
  auto after = mappings.lower_bound(address + size);
  return after != mappings.begin() && std::prev(after)->first + std::prev(after)->second.size > address;
}

void give_back(uint64_t id) {
  Handle& handle = handles.at(id);
  if (!handle.released || handle.mappings) return;
  fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(handle.offset),
            static_cast<off_t>(handle.size));
  if (hoards) hoarded += handle.size;
  else in_use -= handle.size;
  handles.erase(id);
}

int reserve(void** address, size_t size) {
  if (!whole(size)) return INVALID;
  // A multiple of the granularity, as the runtimes give: a granule more, and the ends cut off.
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* got = mmap(nullptr, size + GRANULARITY, PROT_NONE, flags, -1, 0);
  if (got == MAP_FAILED) return OUT_OF_MEMORY;
  uintptr_t start = reinterpret_cast<uintptr_t>(got), base = (start + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
  if (base > start) munmap(got, base - start);
  if (size_t rest = start + GRANULARITY - base) munmap(reinterpret_cast<void*>(base + size), rest);
  *address = reinterpret_cast<void*>(base);
  reservations[static_cast<char*>(*address)] = size;
  return 0;
}

int create(uint64_t* handle, size_t size) {
  if (!whole(size)) return INVALID;
  if (size > total || in_use > total - size) return OUT_OF_MEMORY;
  handles[next_handle] = {next_offset, size, 0, false};
  next_offset += size;
  in_use += size;
  *handle = next_handle++;
  return 0;
}

int map(char* address, size_t size, size_t offset, uint64_t id) {
  auto found = handles.find(id);
  if (found == handles.end() || found->second.released || offset || found->second.size != size) return INVALID;
  if (!reserved(address, size) || overlaps(address, size)) return INVALID;
  off_t at = static_cast<off_t>(found->second.offset);
  if (mmap(address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, file, at) == MAP_FAILED) return OUT_OF_MEMORY;
  ++found->second.mappings;
  mappings[address] = {size, id};
  return 0;
}

int access(char* address, size_t size) {
  auto found = mappings.find(address);
  if (found == mappings.end() || found->second.size != size) return INVALID;
  return mprotect(address, size, PROT_READ | PROT_WRITE) ? INVALID : 0;
}

int unmap(char* address, size_t size) {
  auto found = mappings.find(address);
  if (found == mappings.end() || found->second.size != size) return INVALID;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(address, size, PROT_NONE, flags, -1, 0) == MAP_FAILED) return INVALID;
  uint64_t id = found->second.handle;
  mappings.erase(found);
  --handles.at(id).mappings;
  give_back(id);
  return 0;
}

int release(uint64_t id) {
  auto found = handles.find(id);
  if (found == handles.end() || found->second.released) return INVALID;
  found->second.released = true;
  give_back(id);
  return 0;
}

int address_free(char* address, size_t size) {
  auto found = reservations.find(address);
  if (found == reservations.end() || found->second != size || overlaps(address, size)) return INVALID;
  munmap(address, size);
  reservations.erase(found);
  return 0;
}

int info(size_t* free, size_t* all) {
  *free = total - in_use;
  *all = total;
  return 0;
}

int pin(void** host, size_t size) {
  void* got = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) return OUT_OF_MEMORY;
  pins[static_cast<char*>(got)] = size;
  *host = got;
  return 0;
}

int unpin(void* host) {
  auto found = pins.find(static_cast<char*>(host));
  if (found == pins.end()) return INVALID;
  munmap(host, found->second);
  pins.erase(found);
  return 0;
}

// Device memory that is not mapped faults on a device; here it is an error before the copy.
bool mapped(const void* address, size_t size) {
  char* at = static_cast<char*>(const_cast<void*>(address));
  for (char* end = at + size; at < end;) {
    auto after = mappings.upper_bound(at);
    if (after == mappings.begin() || std::prev(after)->first + std::prev(after)->second.size <= at) return false;
    at = std::prev(after)->first + std::prev(after)->second.size;
  }
  return true;
}

int copy(void* to, const void* from, size_t size, const void* device) {
  if (!mapped(device, size)) return INVALID;
  memcpy(to, from, size);
  return 0;
}

thread_local int capture_mode = 0;

int exchange(int* mode) {
  std::swap(capture_mode, *mode);
  return 0;
}

const char* text(int code) {
  return code == OUT_OF_MEMORY ? "out of memory" : code == INVALID ? "invalid argument" : "emulated fault";
}

}  // namespace

#define CALL(NAME, PARAMETERS, WORK)                     \
  API int NAME PARAMETERS {                              \
    if (int code = gate(#NAME)) return code;             \
    std::lock_guard<std::recursive_mutex> held(lock);    \
    return WORK;                                         \
  }
using Flags = unsigned long long;

#ifdef HIP
static int current_device = 0;
CALL(hipMemAddressReserve, (void** address, size_t size, size_t, void*, Flags), reserve(address, size))
CALL(hipMemCreate, (uint64_t* handle, size_t size, const void*, Flags), create(handle, size))
CALL(hipMemMap, (char* address, size_t size, size_t offset, uint64_t id, Flags), map(address, size, offset, id))
CALL(hipMemSetAccess, (char* address, size_t size, const void*, size_t), access(address, size))
CALL(hipMemUnmap, (char* address, size_t size), unmap(address, size))
CALL(hipMemRelease, (uint64_t id), release(id))
CALL(hipMemAddressFree, (char* address, size_t size), address_free(address, size))
CALL(hipMemGetAllocationGranularity, (size_t* size, const void*, int), (*size = GRANULARITY, 0))
CALL(hipMemGetInfo, (size_t* free, size_t* all), info(free, all))
CALL(hipHostMalloc, (void** host, size_t size, unsigned), pin(host, size))
CALL(hipHostFree, (void* host), unpin(host))
CALL(hipMemcpy, (void* to, const void* from, size_t size, int kind), copy(to, from, size, kind == 1 ? to : from))
CALL(hipDeviceSynchronize, (), 0)
CALL(hipGetDevice, (int* device), (*device = current_device, 0))
CALL(hipSetDevice, (int device), (current_device = device, 0))
CALL(hipThreadExchangeStreamCaptureMode, (int* mode), exchange(mode))
API const char* hipGetErrorString(int code) { return text(code); }
#else
CALL(cuMemAddressReserve, (void** address, size_t size, size_t, void*, Flags), reserve(address, size))
CALL(cuMemCreate, (uint64_t* handle, size_t size, const void*, Flags), create(handle, size))
CALL(cuMemMap, (char* address, size_t size, size_t offset, uint64_t id, Flags), map(address, size, offset, id))
CALL(cuMemSetAccess, (char* address, size_t size, const void*, size_t), access(address, size))
CALL(cuMemUnmap, (char* address, size_t size), unmap(address, size))
CALL(cuMemRelease, (uint64_t id), release(id))
CALL(cuMemAddressFree, (char* address, size_t size), address_free(address, size))
CALL(cuMemGetAllocationGranularity, (size_t* size, const void*, int), (*size = GRANULARITY, 0))
CALL(cuMemGetInfo_v2, (size_t* free, size_t* all), info(free, all))
CALL(cuMemAllocHost_v2, (void** host, size_t size), pin(host, size))
CALL(cuMemFreeHost, (void* host), unpin(host))
CALL(cuMemcpyDtoH_v2, (void* to, const void* from, size_t size), copy(to, from, size, from))
CALL(cuMemcpyHtoD_v2, (void* to, const void* from, size_t size), copy(to, from, size, to))
CALL(cuCtxSynchronize, (), 0)
CALL(cuInit, (unsigned), 0)
CALL(cuDeviceGet, (int* handle, int device), (*handle = device, 0))
CALL(cuDevicePrimaryCtxRetain, (void** context, int device), (*context = reinterpret_cast<void*>(device + 1l), 0))
CALL(cuCtxPushCurrent_v2, (void*), 0)
CALL(cuCtxPopCurrent_v2, (void**), 0)
CALL(cuThreadExchangeStreamCaptureMode, (int* mode), exchange(mode))
API int cuGetErrorString(int code, const char** said) { return *said = text(code), 0; }
#endif

// What a test turns: the size, a fault at the n-th call from now (0: each), a wait before it, memory that is never given back.
API void emulated_total(size_t bytes) {
  std::lock_guard<std::recursive_mutex> held(lock);
  configure();
  total = bytes;
}
API void emulated_fail(const char* name, long nth, long code, long delay_ms) {
  std::lock_guard<std::recursive_mutex> held(lock);
  configure();
  faults[name] = {nth ? calls[name] + nth : EVERY, code, delay_ms};
}
API void emulated_hoard(int on) {
  std::lock_guard<std::recursive_mutex> held(lock);
  if (!(hoards = on)) in_use -= hoarded, hoarded = 0;
}
API void emulated_calm() {
  std::lock_guard<std::recursive_mutex> held(lock);
  faults.clear();
}
API long emulated_calls(const char* name) {
  std::lock_guard<std::recursive_mutex> held(lock);
  return calls[name];
}
API int emulated_capture_mode() { return capture_mode; }
// handles, mappings, reservations, pinned buffers, bytes in use
API void emulated_held(size_t* counts) {
  std::lock_guard<std::recursive_mutex> held(lock);
  size_t all[] = {handles.size(), mappings.size(), reservations.size(), pins.size(), in_use};
  memcpy(counts, all, sizeof all);
}
