// The frame of every operation: the lock, the device made current, one more operation counted unless it only looks.
#pragma once

#include "saver.h"

namespace april {

template <typename Body>
Failure Saver::within(const char* operation, const std::string& tag, Body body, bool counted) {
  std::lock_guard<std::mutex> held(lock_);
  if (Status entered = driver_->enter(); entered.failed) return {entered, operation, tag, 0, 0};
  if (counted) ++operations_;
  Failure result = body();
  note(driver_->leave());
  return result;
}

}  // namespace april
