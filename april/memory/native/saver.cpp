// Blocks: where they are placed, how segments grow, and what is counted. Pausing is in moves.cpp.
#include "saver.h"

#include <unistd.h>

#include <algorithm>

#include "within.h"

namespace april {
namespace {

constexpr size_t ALIGNMENT = 512;  // of blocks, as PyTorch's allocators give

}  // namespace

size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

size_t Segment::backed() const {
  size_t sum = 0;
  for (auto& extent : extents) sum += extent.size;
  return sum;
}

size_t Segment::created() const {
  size_t sum = 0;
  for (auto& extent : extents) sum += extent.created ? extent.size : 0;
  return sum;
}

Saver::~Saver() {
  if (driver_->enter().failed) return;  // the runtime is gone, and what it held with it
  for (auto& [base, segment] : segments_) destroy(*segment);
  driver_->leave();
}

Failure Saver::failure(const char* operation, const std::string& tag, Status status, size_t wanted) {
  Failure made{std::move(status), operation, tag, wanted, 0};
  size_t free = 0, total = 0;
  if (!driver_->info(&free, &total).failed) made.free = free;
  return made;
}

void Saver::note(const Status& status) {
  if (!status.failed) return;
  ++faults_;
  last_fault_ = std::string(status.call) + ": " + std::to_string(status.code) + ", " + status.text;
}

Failure Saver::allocate(const std::string& tag, Keep keep, size_t size, void** block) {
  return within("allocate", tag, [&]() -> Failure {
    size = round_up(std::max<size_t>(size, 1), ALIGNMENT);
    known_.insert(tag);
    if (place(tag, keep, size, block)) return {};
    Status grown = grow(tag, keep, size);
    size_t swept = 0;
    if (grown.out_of_memory) {  // what the pool holds unused is better used here
      note(sweep(nullptr, &swept));
      if (swept) grown = grow(tag, keep, size);
    }
    if (grown.failed) return failure("allocate", tag, grown, size);
    place(tag, keep, size, block);
    return {};
  });
}

// The smallest free range that holds it, in an active segment of the same tag and keep.
bool Saver::place(const std::string& tag, Keep keep, size_t size, void** block) {
  Segment* best = nullptr;
  std::map<size_t, size_t>::iterator found;
  for (auto& [base, segment] : segments_) {
    if (segment->paused || segment->tag != tag || segment->keep != keep) continue;
    for (auto it = segment->free.begin(); it != segment->free.end(); ++it) {
      if (it->second >= size && (!best || it->second < found->second)) best = segment.get(), found = it;
    }
  }
  if (!best) return false;
  auto [offset, room] = *found;
  best->free.erase(found);
  if (room > size) best->free[offset + size] = room - size;
  best->blocks[offset] = size;
  *block = best->base + offset;
  return true;
}

std::vector<Extent> Saver::extents_of(size_t offset, size_t size) const {
  size_t most = extent_limit_ ? round_up(extent_limit_, driver_->granularity()) : size;
  std::vector<Extent> made;
  for (size_t at = 0; at < size; at += most) made.push_back({offset + at, std::min(most, size - at)});
  return made;
}

Status Saver::grow(const std::string& tag, Keep keep, size_t size) {
  size = round_up(std::max(size, chunk_), driver_->granularity());
  if (margin_) {
    size_t free = 0, total = 0;
    if (Status known = driver_->info(&free, &total); known.failed) return known;
    if (free < size + margin_) return Status::fault("margin", 0, "less would be free than the margin asks for", true);
  }
  auto made = std::make_unique<Segment>();
  made->size = size;
  made->tag = tag;
  made->keep = keep;
  if (Status got = driver_->reserve(size, &made->base); got.failed) return got;
  made->extents = extents_of(0, size);
  Status got = back({made.get()});
  char* base = made->base;
  if (!got.failed) {
    made->free[0] = size;
    segments_[base] = std::move(made);
    return got;
  }
  Status gone = destroy(*made);
  note(gone);
  if (gone.failed) segments_[base] = std::move(made);
  return got;
}

Segment* Saver::segment_at(const void* address) {
  char* at = static_cast<char*>(const_cast<void*>(address));
  auto after = segments_.upper_bound(at);
  if (after == segments_.begin()) return nullptr;
  Segment* segment = std::prev(after)->second.get();
  return at < segment->base + segment->size ? segment : nullptr;
}

// Needs the device only where a segment goes with its last block; where it cannot be had, sweep() does it later.
Failure Saver::free(void* block) {
  std::lock_guard<std::mutex> held(lock_);
  ++operations_;
  Segment* segment = segment_at(block);
  auto found = std::map<size_t, size_t>::iterator();
  size_t offset = segment ? static_cast<char*>(block) - segment->base : 0;
  if (!segment || (found = segment->blocks.find(offset)) == segment->blocks.end()) {
    return {Status::fault("free", 0, "no block of ours begins there: freed twice, or never given"), "free", "", 0, 0};
  }
  size_t size = found->second;
  segment->blocks.erase(found);
  segment->saved.erase(offset);
  give_back(*segment, offset, size);
  if (!segment->paused || !segment->blocks.empty()) return {};
  Status entered = driver_->enter();
  note(entered);
  if (entered.failed) return {};
  Status gone = destroy(*segment);  // its memory is gone already: only addresses and backup are left
  note(gone);
  if (!gone.failed) segments_.erase(segments_.find(segment->base));
  note(driver_->leave());
  return {};
}

// Adds a range to the free ones, joined with its neighbours.
void Saver::give_back(Segment& segment, size_t offset, size_t size) {
  auto after = segment.free.lower_bound(offset);
  if (after != segment.free.end() && offset + size == after->first) {
    size += after->second;
    after = segment.free.erase(after);
  }
  if (after != segment.free.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  segment.free[offset] = size;
}

Failure Saver::copy(void* block, void* host, size_t size, bool out) {
  return within("copy", "", [&]() -> Failure {
    Segment* segment = segment_at(block);
    if (!segment) return failure("copy", "", Status::fault("copy", 0, "not an address of ours"));
    if (segment->paused) return failure("copy", segment->tag, Status::fault("copy", 0, "the tag is paused"));
    char* at = static_cast<char*>(block);
    Status got = out ? driver_->copy_out(host, at, size) : driver_->copy_in(at, host, size);
    return failure("copy", segment->tag, got, size);
  }, false);
}

Failure Saver::info(size_t* free, size_t* total) {
  return within("info", "", [&]() -> Failure { return {driver_->info(free, total), "info", "", 0, 0}; }, false);
}

char* Saver::backup_of(const void* address, size_t size) {
  std::lock_guard<std::mutex> held(lock_);
  Segment* segment = segment_at(address);
  if (!segment || !segment->backup.data) return nullptr;
  size_t offset = static_cast<const char*>(address) - segment->base;
  auto after = segment->saved.upper_bound(offset);
  if (after == segment->saved.begin()) return nullptr;
  auto [block, at] = *std::prev(after);
  if (offset + size > block + segment->blocks.at(block)) return nullptr;
  return segment->backup.data + at + (offset - block);
}

int Saver::state(const void* address) {
  std::lock_guard<std::mutex> held(lock_);
  Segment* segment = segment_at(address);
  return segment ? 1 + segment->paused : 0;
}

Stats Saver::stats(const std::string* tag) {
  std::lock_guard<std::mutex> held(lock_);
  Stats sum;
  for (auto& [base, segment] : segments_) {
    if (tag && segment->tag != *tag) continue;
    bool idle = segment->paused || segment->abandoned;
    for (auto& extent : segment->extents) {
      if (idle && extent.created) sum.stuck += extent.size;
      if (segment->paused && !segment->abandoned && !extent.created) sum.paused += extent.size;
    }
    sum.backup += segment->backup.size;
    if (segment->abandoned) continue;
    ++sum.segments;
    sum.reserved += segment->backed();
    sum.holes += segment->size - segment->backed();
    sum.extents += segment->extents.size();
    sum.blocks += segment->blocks.size();
    for (auto& block : segment->blocks) sum.allocated += block.second;
    for (auto& range : segment->free) {
      if (!segment->paused) sum.largest_free = std::max<uint64_t>(sum.largest_free, range.second);
    }
  }
  sum.dirty = tag ? dirty_.count(*tag) : dirty_.size();
  sum.operations = operations_;
  sum.faults = faults_;
  return sum;
}

std::vector<std::string> Saver::tags() {
  std::lock_guard<std::mutex> held(lock_);
  return {known_.begin(), known_.end()};
}

void Saver::clean(const std::string& tag) {
  std::lock_guard<std::mutex> held(lock_);
  dirty_.erase(tag);
}

void Saver::set(size_t margin, bool retain) {
  std::lock_guard<std::mutex> held(lock_);
  margin_ = margin;
  retain_ = retain;
}

std::string Saver::last_fault() {
  std::lock_guard<std::mutex> held(lock_);
  return last_fault_;
}

}  // namespace april
