#include "unit/checkpoint_matrix.h"

#include <c10/util/StringUtil.h>

#include <array>
#include <set>

namespace tessera::checkpoint {

using namespace torch::optim;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

void ManyShapesState::serialize(OutputArchive& archive) const {
  archive.write("full", full, /*is_buffer=*/true);
  archive.write("rows", c10::IValue(rows));
  archive.write("wide", c10::IValue(wide));
  archive.write("fixed", c10::IValue(fixed));
  archive.write("count", c10::IValue(count));
  archive.write("scale", c10::IValue(scale));
}

void ManyShapesState::serialize(InputArchive& archive) {
  const auto read = [&](const char* name) {
    c10::IValue value;
    archive.read(name, value);
    return value;
  };
  archive.read("full", full, /*is_buffer=*/true);
  rows = read("rows").toTensor();
  wide = read("wide").toTensor();
  fixed = read("fixed").toTensor();
  count = read("count").toInt();
  scale = read("scale").toDouble();
}

Tensor ManyShapes::step(LossClosure) {
  torch::NoGradGuard no_grad;
  for (auto& group : param_groups_) {
    const double lr = static_cast<ManyShapesOptions&>(group.options()).lr;
    for (Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& slot = state_[parameter.unsafeGetTensorImpl()];
      const int64_t rows = parameter.dim() == 0 ? 1 : parameter.size(0);
      if (!slot) {
        auto made = std::make_unique<ManyShapesState>();
        made->full = torch::zeros_like(parameter);
        made->rows = torch::zeros({rows}, torch::kDouble);
        made->wide = torch::zeros({rows, 3}, torch::kInt);
        made->fixed = torch::arange(5, torch::kDouble);
        slot = std::move(made);
      }
      auto& state = static_cast<ManyShapesState&>(*slot);
      const Tensor& gradient = parameter.grad();
      state.full.mul_(0.5).add_(gradient);
      if (rows > 0 && gradient.numel() > 0) {
        const Tensor largest = gradient.reshape({rows, -1}).to(torch::kDouble).abs().amax(1);
        state.rows.add_(largest);
        state.wide.add_(largest.mul(1e6).to(torch::kInt).unsqueeze(1)).add_(torch::arange(3));
      }
      state.fixed.mul_(1.25);
      state.scale = 1.0 / static_cast<double>(++state.count + 2);
      parameter.sub_(state.full, lr * state.scale);
    }
  }
  return {};
}

const std::vector<MatrixOptimizer>& matrix_optimizers() {
  static const std::vector<MatrixOptimizer> optimizers = {
      {"AdamAmsgrad",
       make_optimizer<Adam>(AdamOptions(1e-2).betas({0.8, 0.95}).weight_decay(0.1).amsgrad(true)),
       make_optimizer<Adam>(AdamOptions(1e-3).amsgrad(true))},
      {"AdamW", make_optimizer<AdamW>(AdamWOptions(1e-2).betas({0.7, 0.9})),
       make_optimizer<AdamW>(AdamWOptions(5e-4))},
      {"Adagrad",
       make_optimizer<Adagrad>(AdagradOptions(1e-2).initial_accumulator_value(0.5).lr_decay(0.01)),
       make_optimizer<Adagrad>(AdagradOptions(1.0))},
      {"RMSprop", make_optimizer<RMSprop>(RMSpropOptions(1e-3).centered(true).momentum(0.5)),
       make_optimizer<RMSprop>(RMSpropOptions(1e-1).centered(true).momentum(0.1))},
      {"SGD", make_optimizer<SGD>(SGDOptions(0.05).momentum(0.9).weight_decay(0.01)),
       make_optimizer<SGD>(SGDOptions(0.5).momentum(0.1))},
      {"ManyShapes", make_optimizer<ManyShapes>(ManyShapesOptions(0.1)),
       make_optimizer<ManyShapes>(ManyShapesOptions(0.9))},
  };
  return optimizers;
}

std::vector<ParameterSpec> matrix_model() {
  return {{"embed.weight", {53, 6}, torch::kFloat, true, true, {"head.weight"}},
          {"uneven.weight", {11, 5}},
          {"uneven.bias", {11}},
          {"row", {1, 17}},
          {"scale", {}},
          {"wide", {3, 4, 2}},
          {"empty", {0, 4}},
          {"double.weight", {6, 2}, torch::kDouble},
          {"frozen", {5, 3}, torch::kFloat, false},
          {"frozen.half", {9, 2}, torch::kHalf, false},
          {"codes", {7, 3}, torch::kByte, false},
          {"table", {13}, torch::kLong, false},
          {"unused.weight", {4, 2}, torch::kFloat, true, false}};
}

std::vector<NamedBuffer> matrix_buffers(bool other_values) {
  std::vector<NamedBuffer> buffers;
  constexpr const char* kNames[] = {"BOOL",    "U8",          "I8",          "I16",    "U16",
                                    "I32",     "U32",         "I64",         "U64",    "F16",
                                    "BF16",    "F32",         "F64",         "C64",    "F8_E5M2",
                                    "F8_E4M3", "F8_E5M2FNUZ", "F8_E4M3FNUZ", "F8_E8M0"};
  for (const char* name : kNames) {
    // 48 bytes of each; those of a bool are 0 or 1.
    const int64_t first = static_cast<int64_t>(buffers.size()) + (other_values ? 128 : 0);
    Tensor bytes = torch::arange(first, first + 48, torch::kLong).remainder(251);
    if (std::string(name) == "BOOL") bytes = bytes.div(3, "floor").remainder(2);
    bytes = bytes.to(torch::kByte);
    buffers.push_back({c10::str("buffer.", name), bytes.view(*scalar_type(name))});
  }
  buffers.push_back({"buffer.scalar", torch::tensor(other_values ? 4.5 : 3.25, torch::kDouble)});
  return buffers;
}

namespace {

using Values = std::array<size_t, 8>;  // an index for each factor
constexpr std::array<int, 6> kWorlds = {1, 2, 3, 4, 5, 7};
constexpr Values kSizes = {kWorlds.size(), kWorlds.size(), 2, 2, 6, 2, 2, 2};

MatrixCase to_case(const Values& values) {
  const auto kind = [](size_t index) {
    return index == 0 ? StateDictKind::kSharded : StateDictKind::kFull;
  };
  return {kWorlds[values[0]], kWorlds[values[1]], kind(values[2]), kind(values[3]),
          values[4],          values[5] == 1,     values[6] == 1,  values[7] == 1};
}

std::vector<Values> all_values() {
  std::vector<Values> all;
  Values values = {};
  for (;;) {
    all.push_back(values);
    size_t factor = values.size();
    while (factor > 0 && ++values[factor - 1] == kSizes[factor - 1]) values[--factor] = 0;
    if (factor == 0) return all;
  }
}

using Pair = std::array<size_t, 4>;  // factor, value, factor, value

std::vector<Pair> pairs_of(const Values& values) {
  std::vector<Pair> pairs;
  for (size_t a = 0; a < values.size(); ++a)
    for (size_t b = a + 1; b < values.size(); ++b) pairs.push_back({a, values[a], b, values[b]});
  return pairs;
}

}  // namespace

std::string MatrixCase::describe() const {
  const auto name = [](StateDictKind value) {
    return value == StateDictKind::kFull ? "full" : "sharded";
  };
  return c10::str(matrix_optimizers()[optimizer].name, ": ", saved, " ranks ", name(kind),
                  skewed_save ? " skewed" : "", " to ", loaded, " ranks ", name(asked),
                  skewed_load ? " skewed" : "", trained ? " trained" : "");
}

std::vector<MatrixCase> all_matrix_cases() {
  std::vector<MatrixCase> cases;
  for (const Values& values : all_values()) cases.push_back(to_case(values));
  return cases;
}

std::vector<MatrixCase> pairwise_matrix_cases() {
  const std::vector<Values> all = all_values();
  std::set<Pair> open;
  for (const Values& values : all)
    for (const Pair& pair : pairs_of(values)) open.insert(pair);
  std::vector<MatrixCase> cases;
  while (!open.empty()) {
    const Values* best = nullptr;
    size_t most = 0;
    // Any candidate that covers something ends the search; looking at a part of them is enough.
    for (size_t i = cases.size() * 97 % 13; i < all.size(); i += 13) {
      size_t covered = 0;
      for (const Pair& pair : pairs_of(all[i])) covered += open.count(pair);
      if (covered > most) most = covered, best = &all[i];
    }
    if (!best) {
      for (const Values& values : all)
        for (const Pair& pair : pairs_of(values))
          if (open.contains(pair)) best = &values;
    }
    for (const Pair& pair : pairs_of(*best)) open.erase(pair);
    cases.push_back(to_case(*best));
  }
  return cases;
}

}  // namespace tessera::checkpoint
