// HIP's and CUDA's virtual memory calls, found by dlopen, so that no toolkit is needed to build this.
// Both have the same calls; pointers, device pointers and handles are all 64 bits wide. Types as their headers lay them
// out: hip_runtime_api.h (hipMemAllocationProp, hipMemAccessDesc), cuda.h (CUmemAllocationProp, CUmemAccessDesc).
#include <dlfcn.h>

#include <vector>

#include "drivers.h"

namespace april {
namespace {

struct Location {
  int type = 1;  // device
  int id = 0;
};
struct Properties {
  int type = 1;  // pinned, the only one there is
  int handle_types = 0;
  Location location;
  void* windows = nullptr;
  unsigned char compression = 0, rdma = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
struct Access {
  Location location;
  int flags = 3;  // read and write
};
static_assert(sizeof(Properties) == 32 && sizeof(Access) == 12, "as in the runtimes' headers");

constexpr int OUT_OF_MEMORY = 2;  // hipErrorOutOfMemory and CUDA_ERROR_OUT_OF_MEMORY
constexpr int RELAXED = 2;        // a capture in this thread does not forbid taking memory, as PyTorch's allocator has it
constexpr int HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2;

enum Name { RESERVE, CREATE, MAP, ACCESS, UNMAP, RELEASE, ADDRESS_FREE, GRANULARITY, INFO, PIN, UNPIN, SYNC, TEXT,
            COPY, TO_HOST, TO_DEVICE, GET_DEVICE, SET_DEVICE, INIT, DEVICE, RETAIN, PUSH, POP, CAPTURE, NAMES };

constexpr const char* HIP[NAMES] = {
    "hipMemAddressReserve", "hipMemCreate", "hipMemMap", "hipMemSetAccess", "hipMemUnmap", "hipMemRelease",
    "hipMemAddressFree", "hipMemGetAllocationGranularity", "hipMemGetInfo", "hipHostMalloc", "hipHostFree",
    "hipDeviceSynchronize", "hipGetErrorString", "hipMemcpy", nullptr, nullptr, "hipGetDevice", "hipSetDevice",
    nullptr, nullptr, nullptr, nullptr, nullptr, "hipThreadExchangeStreamCaptureMode"};
constexpr const char* CUDA[NAMES] = {
    "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease",
    "cuMemAddressFree", "cuMemGetAllocationGranularity", "cuMemGetInfo_v2", "cuMemAllocHost_v2", "cuMemFreeHost",
    "cuCtxSynchronize", "cuGetErrorString", nullptr, "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", nullptr, nullptr,
    "cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
    "cuThreadExchangeStreamCaptureMode"};

class Gpu : public Driver {
 public:
  Gpu(bool hip, void* library, int device) : hip_(hip), names_(hip ? HIP : CUDA), library_(library), device_(device) {
    properties_.location.id = access_.location.id = device;
  }

  // Looks every call up, and asks for what does not change.
  Status start() {
    for (int name = 0; name < NAMES; ++name) {
      if (names_[name] && !(calls_[name] = dlsym(library_, names_[name]))) {
        return Status::fault("dlsym", 0, std::string("the library has no ") + names_[name]);
      }
    }
    if (!hip_) {
      int handle = 0;
      if (Status got = call<int(unsigned)>(INIT, 0u); got.failed) return got;
      if (Status got = call<int(int*, int)>(DEVICE, &handle, device_); got.failed) return got;
      if (Status got = call<int(void**, int)>(RETAIN, &context_, handle); got.failed) return got;
    }
    if (Status got = enter(); got.failed) return got;
    Status got = call<int(size_t*, const Properties*, int)>(GRANULARITY, &granularity_, &properties_, 0);
    Status left = leave();
    return got.failed ? got : left;
  }

  Status enter() override {
    void* ours = nullptr;
    if (hip_) {
      if (Status got = call<int(int*)>(GET_DEVICE, &before_); got.failed) return got;
      if (Status got = select(device_); got.failed) return got;
    } else if (Status got = call<int(void*)>(PUSH, context_); got.failed) {
      return got;
    }
    capture_ = RELAXED;
    Status got = call<int(int*)>(CAPTURE, &capture_);
    if (got.failed) hip_ ? select(before_) : call<int(void**)>(POP, &ours);
    return got;
  }
  Status leave() override {
    void* ours = nullptr;
    Status first = call<int(int*)>(CAPTURE, &capture_);
    Status got = hip_ ? select(before_) : call<int(void**)>(POP, &ours);
    return first.failed ? first : got;
  }

  size_t granularity() const override { return granularity_; }

  Status reserve(size_t size, char** address) override {
    return call<int(void**, size_t, size_t, void*, unsigned long long)>(
        RESERVE, reinterpret_cast<void**>(address), size, size_t{0}, static_cast<void*>(nullptr), 0ull);
  }
  Status create(size_t size, uint64_t* handle) override {
    return call<int(uint64_t*, size_t, const Properties*, unsigned long long)>(CREATE, handle, size, &properties_, 0ull);
  }
  // Access is part of mapping: where it is refused, the range is unmapped again.
  Status map(char* address, size_t size, uint64_t handle) override {
    Status got = call<int(void*, size_t, size_t, uint64_t, unsigned long long)>(
        MAP, static_cast<void*>(address), size, size_t{0}, handle, 0ull);
    if (got.failed) return got;
    got = call<int(void*, size_t, const Access*, size_t)>(ACCESS, static_cast<void*>(address), size, &access_, size_t{1});
    if (!got.failed) return got;
    if (Status undone = unmap(address, size); undone.failed) {
      got.still_mapped = true;
    }
    return got;
  }
  Status unmap(char* address, size_t size) override {
    return call<int(void*, size_t)>(UNMAP, static_cast<void*>(address), size);
  }
  Status release(uint64_t handle) override { return call<int(uint64_t)>(RELEASE, handle); }
  Status free_address(char* address, size_t size) override {
    return call<int(void*, size_t)>(ADDRESS_FREE, static_cast<void*>(address), size);
  }
  Status info(size_t* free, size_t* total) override { return call<int(size_t*, size_t*)>(INFO, free, total); }
  Status copy_out(void* host, const char* address, size_t size) override {
    const void* from = address;
    if (hip_) return call<int(void*, const void*, size_t, int)>(COPY, host, from, size, DEVICE_TO_HOST);
    return call<int(void*, const void*, size_t)>(TO_HOST, host, from, size);
  }
  Status copy_in(char* address, const void* host, size_t size) override {
    void* to = address;
    if (hip_) return call<int(void*, const void*, size_t, int)>(COPY, to, host, size, HOST_TO_DEVICE);
    return call<int(void*, const void*, size_t)>(TO_DEVICE, to, host, size);
  }
  Status pinned(size_t size, void** host) override {
    if (hip_) return call<int(void**, size_t, unsigned)>(PIN, host, size, 0u);
    return call<int(void**, size_t)>(PIN, host, size);
  }
  Status unpin(void* host) override { return call<int(void*)>(UNPIN, host); }
  Status synchronize() override { return call<int()>(SYNC); }

 private:
  Status select(int device) {
    return before_ == device_ ? Status{} : call<int(int)>(SET_DEVICE, device);
  }

  template <typename Signature, typename... Arguments>
  Status call(Name name, Arguments... arguments) {
    Running now(this, names_[name]);
    int code = reinterpret_cast<Signature*>(calls_[name])(arguments...);
    return code ? Status::fault(names_[name], code, text(code), code == OUT_OF_MEMORY) : Status{};
  }

  std::string text(int code) {
    const char* said = nullptr;
    if (hip_) said = reinterpret_cast<const char* (*)(int)>(calls_[TEXT])(code);
    else reinterpret_cast<int (*)(int, const char**)>(calls_[TEXT])(code, &said);
    return said ? said : "unknown error";
  }

  bool hip_;
  const char* const* names_;
  void* library_;  // never closed: a runtime does not survive that
  int device_, before_ = 0, capture_ = RELAXED;
  void* context_ = nullptr;
  void* calls_[NAMES] = {};
  size_t granularity_ = 0;
  Properties properties_;
  Access access_;
};

}  // namespace

std::unique_ptr<Driver> open_gpu(const std::string& runtime, const std::string& library, int device, Status* status) {
  bool hip = runtime == "hip";
  std::vector<std::string> paths{library};
  if (library.empty()) {
    if (hip) paths = {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"};
    else paths = {"libcuda.so.1", "libcuda.so"};
  }
  void* opened = nullptr;  // first the one that PyTorch has loaded: a process must not hold two runtimes
  for (int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
    for (auto& path : paths) {
      if (!opened) opened = dlopen(path.c_str(), flags);
    }
  }
  if (!opened) {
    *status = Status::fault("dlopen", 0, dlerror());
    return nullptr;
  }
  auto made = std::make_unique<Gpu>(hip, opened, device);
  *status = made->start();
  return status->failed ? nullptr : std::move(made);
}

}  // namespace april
