// The bytes of a live tensor as a checkpoint stores them: row-major, in host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstring>
#include <optional>

namespace tessera::checkpoint {

// Keeps alive what it points to. Costs a copy only for tensors that are not contiguous or not on
// the CPU.
class HostBytes {
 public:
  explicit HostBytes(const at::Tensor& tensor);
  // An integer in the form that PyTorch gives to step counts.
  explicit HostBytes(int64_t value) : number_(static_cast<float>(value)) {}
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;

  const void* data() const { return number_ ? static_cast<const void*>(&*number_) : data_; }
  size_t size() const { return number_ ? sizeof(float) : size_; }

 private:
  at::Tensor tensor_;
  const void* data_ = nullptr;
  size_t size_ = 0;
  std::optional<float> number_;
};

}  // namespace tessera::checkpoint
