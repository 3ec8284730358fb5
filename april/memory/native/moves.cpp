// Pause, resume and compact: what moves between device and host, and what is undone when a driver refuses.
#include <unistd.h>

#include <algorithm>

#include "within.h"

namespace april {

Failure Saver::pause(const std::string& tag, Moved* moved) {
  return within("pause", tag, [&]() -> Failure {
    size_t total = 0, wanted = 0;
    if (Status got = driver_->synchronize(); got.failed) return failure("pause", tag, got);
    if (Status got = driver_->info(&moved->free_before, &total); got.failed) return failure("pause", tag, got);
    note(sweep(&tag, &moved->bytes));
    std::vector<Segment*> active, all;
    for (auto& [base, segment] : segments_) {
      if (segment->tag != tag || segment->abandoned) continue;
      all.push_back(segment.get());
      if (!segment->paused) active.push_back(segment.get());
      if (!segment->paused && segment->keep != Keep::NOTHING) wanted += segment->backed();
    }
    for (Segment* segment : active) {  // all are saved before any is taken away
      Status saved = save(*segment);
      if (!saved.failed) continue;
      for (Segment* each : active) {
        each->saved.clear();
        note(each->backup.drop(*driver_));
      }
      saved.text += ", keeping contents; nothing of it was paused";
      Failure told = failure("pause", tag, saved, wanted);
      told.free = static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
      return told;
    }
    Status first;
    size_t stuck = 0;
    for (Segment* segment : all) {
      size_t held = segment->created();
      segment->paused = true;
      Status got = unload(*segment);
      if (got.failed && !first.failed) first = got;
      stuck += segment->created();
      moved->bytes += held - segment->created();
      moved->segments += held != 0;
    }
    if (first.failed) first.text += ", " + std::to_string(stuck) + " bytes stay with the runtime; pause again";
    else first = driver_->info(&moved->free_after, &total);
    return failure("pause", tag, first);
  });
}

Failure Saver::resume(const std::string& tag, Moved* moved) {
  return within("resume", tag, [&]() -> Failure {
    size_t total = 0, wanted = 0;
    std::vector<Segment*> paused;
    for (auto& [base, segment] : segments_) {
      if (segment->tag != tag || !segment->paused || segment->abandoned) continue;
      paused.push_back(segment.get());
      for (auto& extent : segment->extents) wanted += extent.created ? 0 : extent.size;
    }
    Status got = driver_->info(&moved->free_before, &total);
    if (!got.failed) got = back(paused);
    if (got.failed) return failure("resume", tag, got, wanted);
    for (Segment* segment : paused) {
      got = restore(*segment);
      if (!got.failed) continue;
      for (Segment* each : paused) note(unload(*each));
      return failure("resume", tag, got, wanted);
    }
    for (Segment* segment : paused) {
      segment->paused = false;
      if (segment->keep == Keep::NOTHING) dirty_.insert(tag);
      if (retain_) continue;
      segment->saved.clear();
      note(segment->backup.drop(*driver_));
    }
    moved->bytes = wanted;
    moved->segments = paused.size();
    return failure("resume", tag, driver_->info(&moved->free_after, &total), wanted);
  });
}

Failure Saver::compact(Moved* moved) {
  return within("compact", "", [&]() -> Failure {
    size_t total = 0;
    Status got = driver_->info(&moved->free_before, &total);
    if (got.failed) return failure("compact", "", got);
    Status first = sweep(nullptr, &moved->bytes);
    for (auto& [base, segment] : segments_) {
      if (!segment->paused || segment->abandoned) continue;
      Status again = unload(*segment);
      if (again.failed && !first.failed) first = again;
      if (again.failed) continue;
      size_t before = segment->backed();
      trim(*segment);
      moved->bytes += before - segment->backed();
      ++moved->segments;
    }
    got = driver_->info(&moved->free_after, &total);
    return failure("compact", "", first.failed ? first : got, moved->bytes);
  });
}

Status Saver::back(const std::vector<Segment*>& segments) {
  std::vector<Extent*> created;
  std::vector<std::pair<Segment*, Extent*>> mapped;
  for (Segment* segment : segments) {  // out of memory shows here, before any address changes
    for (auto& extent : segment->extents) {
      if (extent.created) continue;
      Status got = driver_->create(extent.size, &extent.handle);
      if (got.failed) {
        unback(created, mapped);
        return got;
      }
      extent.created = true;
      created.push_back(&extent);
    }
  }
  for (Segment* segment : segments) {
    for (auto& extent : segment->extents) {
      if (extent.mapped) continue;
      Status got = driver_->map(segment->base + extent.offset, extent.size, extent.handle);
      extent.mapped = !got.failed || got.still_mapped;
      if (got.failed) {
        unback(created, mapped);
        return got;
      }
      mapped.emplace_back(segment, &extent);
    }
  }
  return {};
}

void Saver::unback(std::vector<Extent*>& created, std::vector<std::pair<Segment*, Extent*>>& mapped) {
  for (auto& [segment, extent] : mapped) {
    Status got = driver_->unmap(segment->base + extent->offset, extent->size);
    note(got);
    extent->mapped = got.failed;
  }
  for (Extent* extent : created) {
    if (extent->mapped) continue;
    Status got = driver_->release(extent->handle);
    note(got);
    extent->created = got.failed;
  }
}

Status Saver::unload(Segment& segment) {
  Status first;
  for (auto& extent : segment.extents) {
    if (!extent.mapped) continue;
    Status got = driver_->unmap(segment.base + extent.offset, extent.size);
    extent.mapped = got.failed;
    if (got.failed && !first.failed) first = got;
  }
  for (auto& extent : segment.extents) {
    if (!extent.created || extent.mapped) continue;
    Status got = driver_->release(extent.handle);
    extent.created = got.failed;
    if (got.failed && !first.failed) first = got;
  }
  return first;
}

Status Saver::save(Segment& segment) {
  segment.saved.clear();
  if (Status got = segment.backup.drop(*driver_); got.failed) return got;
  if (segment.keep == Keep::NOTHING) return {};
  size_t sum = 0;
  for (auto& block : segment.blocks) sum += block.second;
  if (Status got = Backup::make(*driver_, segment.keep, sum, folder_, &segment.backup); got.failed) return got;
  size_t at = 0;
  for (auto& [offset, size] : segment.blocks) {
    if (Status got = segment.backup.save(*driver_, at, segment.base + offset, size); got.failed) return got;
    segment.saved[offset] = at;
    at += size;
  }
  return {};
}

Status Saver::restore(Segment& segment) {
  for (auto& [offset, at] : segment.saved) {
    Status got = segment.backup.load(*driver_, at, segment.base + offset, segment.blocks.at(offset));
    if (got.failed) return got;
  }
  return {};
}

Status Saver::destroy(Segment& segment) {
  segment.abandoned = true;
  segment.free.clear();
  segment.saved.clear();
  Status first = segment.backup.drop(*driver_), got = unload(segment);
  if (!first.failed) first = got;
  return first.failed ? first : driver_->free_address(segment.base, segment.size);
}

Status Saver::sweep(const std::string* tag, size_t* bytes) {
  Status first;
  for (auto it = segments_.begin(); it != segments_.end();) {
    Segment& segment = *it->second;
    if ((tag && segment.tag != *tag) || !segment.blocks.empty()) {
      ++it;
      continue;
    }
    size_t held = segment.created();
    Status gone = destroy(segment);
    if (gone.failed && !first.failed) first = gone;
    if (!gone.failed) *bytes += held;
    it = gone.failed ? std::next(it) : segments_.erase(it);
  }
  return first;
}

// A paused segment keeps the granules in which something lives: neighbours become one extent, the rest becomes holes.
void Saver::trim(Segment& segment) {
  size_t unit = driver_->granularity();
  std::vector<std::pair<size_t, size_t>> runs;  // begin, end
  for (auto& [offset, size] : segment.blocks) {
    size_t begin = offset / unit * unit, end = round_up(offset + size, unit);
    if (!runs.empty() && begin <= runs.back().second) runs.back().second = std::max(runs.back().second, end);
    else runs.emplace_back(begin, end);
  }
  segment.extents.clear();
  segment.free.clear();
  for (auto [begin, end] : runs) {
    for (auto& extent : extents_of(begin, end - begin)) segment.extents.push_back(extent);
    size_t at = begin;
    for (auto block = segment.blocks.lower_bound(begin); block != segment.blocks.end() && block->first < end; ++block) {
      if (block->first > at) segment.free[at] = block->first - at;
      at = block->first + block->second;
    }
    if (at < end) segment.free[at] = end - at;
  }
}

}  // namespace april
