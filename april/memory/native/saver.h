// Memory by tag: blocks in segments, segments that are paused and resumed at the same addresses.
//
//   block    what a caller got. Part of one segment.
//   segment  one reserved range of addresses. ACTIVE: all its extents are mapped. PAUSED: none is needed.
//   extent   a part of a segment with physical memory of its own; between extents are holes (addresses only, never
//            used again), which compact() leaves where nothing lives.
//
// A segment is never half restored: resume() brings back all paused segments of a tag or none. Where a driver refuses
// to take memory away, the extent keeps it, is counted as stuck, and the next pause() or compact() tries again; resume()
// goes on with the memory it still has. All is under one lock. Pure bookkeeping over a Driver: knows no runtime.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "backup.h"

namespace april {

struct Extent {
  size_t offset = 0, size = 0;
  uint64_t handle = 0;
  bool created = false, mapped = false;
};

struct Segment {
  char* base = nullptr;
  size_t size = 0;
  std::string tag;
  Keep keep = Keep::NOTHING;
  bool paused = false, abandoned = false;  // abandoned: nothing lives here; kept only for what the driver did not take
  std::vector<Extent> extents;
  std::map<size_t, size_t> blocks, free;  // offset -> size
  Backup backup;
  std::map<size_t, size_t> saved;  // block's offset -> offset in the backup

  size_t backed() const;   // bytes of its extents
  size_t created() const;  // those of them that have memory now
};

// What a caller is told when an operation failed. `status.failed` says whether it did.
struct Failure {
  Status status;
  std::string operation, tag;
  uint64_t wanted = 0, free = 0;
};

// Bytes that pause(), resume() or compact() moved, and the device's free bytes before and after.
struct Moved {
  uint64_t bytes = 0, segments = 0, free_before = 0, free_after = 0;
};

struct Stats {
  uint64_t reserved = 0, allocated = 0, largest_free = 0, paused = 0, backup = 0, stuck = 0, holes = 0;
  uint64_t segments = 0, extents = 0, blocks = 0, dirty = 0, operations = 0, faults = 0;
};

class Saver {
 public:
  Saver(std::unique_ptr<Driver> driver, size_t chunk, size_t extent_limit, std::string folder)
      : driver_(std::move(driver)), chunk_(chunk), extent_limit_(extent_limit), folder_(std::move(folder)) {}
  ~Saver();

  Failure allocate(const std::string& tag, Keep keep, size_t size, void** block);
  Failure free(void* block);
  Failure pause(const std::string& tag, Moved* moved);
  Failure resume(const std::string& tag, Moved* moved);
  Failure compact(Moved* moved);
  Failure info(size_t* free, size_t* total);
  Failure copy(void* block, void* host, size_t size, bool out);

  char* backup_of(const void* address, size_t size);  // null where nothing is kept
  int state(const void* address);                      // 0: not of this saver, 1: active, 2: paused
  Stats stats(const std::string* tag);
  std::vector<std::string> tags();
  void clean(const std::string& tag);
  void set(size_t margin, bool retain);
  std::string last_fault();
  Driver& driver() { return *driver_; }

 private:
  template <typename Body>
  Failure within(const char* operation, const std::string& tag, Body body, bool counted = true);
  Failure failure(const char* operation, const std::string& tag, Status status, size_t wanted = 0);
  void note(const Status& status);  // a fault that does not fail the operation

  Segment* segment_at(const void* address);
  bool place(const std::string& tag, Keep keep, size_t size, void** block);
  Status grow(const std::string& tag, Keep keep, size_t size);
  std::vector<Extent> extents_of(size_t offset, size_t size) const;
  void give_back(Segment& segment, size_t offset, size_t size);

  Status back(const std::vector<Segment*>& segments);  // all extents created and mapped, or as before
  void unback(std::vector<Extent*>& created, std::vector<std::pair<Segment*, Extent*>>& mapped);
  Status unload(Segment& segment);                     // as many extents unmapped and released as the driver allows
  Status save(Segment& segment);
  Status restore(Segment& segment);
  Status destroy(Segment& segment);                    // then to be erased, unless it stays abandoned
  Status sweep(const std::string* tag, size_t* bytes); // destroys segments in which nothing lives
  void trim(Segment& segment);

  std::mutex lock_;
  std::unique_ptr<Driver> driver_;
  size_t chunk_, extent_limit_, margin_ = 0;
  bool retain_ = false;
  std::string folder_, last_fault_;
  std::map<char*, std::unique_ptr<Segment>> segments_;  // by base
  std::set<std::string> dirty_, known_;
  uint64_t operations_ = 0, faults_ = 0;
};

size_t round_up(size_t size, size_t unit);

}  // namespace april
