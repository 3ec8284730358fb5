// The frame of every operation: the lock, the device made current, one more operation counted.
#pragma once

#include "saver.h"

namespace april {

template <typename Body>
Failure Saver::within(const char* operation, const std::string& tag, Body body) {
  std::lock_guard<std::mutex> held(lock_);
  if (Status entered = driver_->enter(); entered.failed) return {entered, operation, tag, 0, 0};
  ++operations_;
  Failure result = body();
  note(driver_->leave());
  return result;
}

}  // namespace april
