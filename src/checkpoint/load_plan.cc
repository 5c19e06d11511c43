#include "checkpoint/load_plan.h"

#include <c10/util/StringUtil.h>
#include <torch/torch.h>

#include <algorithm>

#include "checkpoint/dtype.h"

namespace tessera::checkpoint {

torch::Tensor LoadPlan::reserve(const StoredTensor& stored, layout::RowRange rows,
                                torch::IntArrayRef local_shape, torch::ScalarType dtype,
                                torch::Device device, const torch::Tensor& rest) {
  const auto stored_type = scalar_type(stored.dtype);
  FreshTensor tensor;
  const auto host = torch::TensorOptions().dtype(*stored_type).device(torch::kCPU);
  tensor.host = torch::empty(local_shape, host);
  if (rest.defined()) {
    torch::NoGradGuard no_grad;
    tensor.host.copy_(rest);
  }
  const bool in_place = dtype == *stored_type && device.is_cpu();
  tensor.fresh =
      in_place ? tensor.host : torch::empty(local_shape, host.dtype(dtype).device(device));
  tensor.request = {&stored, rows, state.rank(), tensor.host.data_ptr()};
  if (stored.placement == StoredPlacement::kPerRank &&
      manifest.head.world_size != state.world_size())
    tensor.request.rank = 0;
  tensors.push_back(tensor);
  return tensor.fresh;
}

std::string LoadPlan::stored_name(const std::string& name) const {
  std::string renamed = options.stored_name(name);
  const auto alias = manifest.aliases.find(renamed);
  return alias == manifest.aliases.end() ? renamed : alias->second;
}

bool LoadPlan::may_resize(const std::string& name, const std::vector<int64_t>& stored,
                          const std::vector<int64_t>& here) const {
  const bool by_rows = !here.empty() && stored.size() == here.size() &&
                       std::equal(stored.begin() + 1, stored.end(), here.begin() + 1);
  return by_rows && options.may_resize({name, stored, here});
}

void LoadPlan::convert(const std::string& key, const std::string& stored, const std::string& here) {
  if (spec.dtype_policy() == DtypePolicy::kExact) {
    problems.push_back(c10::str("'", key, "': dtype ", stored, " in the checkpoint, ", here,
                                " here (DtypePolicy::kConvert allows it)"));
    return;
  }
  report.converted.push_back(key);
  note(c10::str("'", key, "' converted from ", stored, " to ", here));
}

void LoadPlan::missing(StatePart part, const std::string& key, const std::string& problem) {
  if (!options.strictness(part).missing) return problems.push_back(problem);
  report.missing.push_back(key);
  note(problem + "; it stays as it is");
}

void LoadPlan::unexpected(StatePart part, const std::string& key, const std::string& problem) {
  if (!options.strictness(part).unexpected) return problems.push_back(problem);
  report.unexpected.push_back(key);
  note(problem + "; not loaded");
}

layout::RowRange common_rows(int64_t row_begin, int64_t row_end, int64_t stored_rows) {
  return {std::min(row_begin, stored_rows), std::min(row_end, stored_rows)};
}

}  // namespace tessera::checkpoint
