// What the any-to-any matrix saves: a model with everything that is awkward, buffers of every
// dtype, six optimizers, and the cases of the matrix.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/dtype.h"
#include "unit/checkpoint_fleet.h"

namespace tessera::checkpoint {

// A state of several shapes: like the parameter, one number a row, three numbers a row, the same on
// all ranks, an integer and a double. All of a row's numbers come from that row alone.
struct ManyShapesState : torch::optim::OptimizerCloneableParamState<ManyShapesState> {
  Tensor full, rows, wide, fixed;
  int64_t count = 0;
  double scale = 0;

  void serialize(torch::serialize::OutputArchive& archive) const override;
  void serialize(torch::serialize::InputArchive& archive) override;
};

struct ManyShapesOptions : torch::optim::OptimizerCloneableOptions<ManyShapesOptions> {
  explicit ManyShapesOptions(double rate = 0.1) : lr(rate) {}
  double lr;

  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("lr", c10::IValue(lr));
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    c10::IValue value;
    archive.read("lr", value);
    lr = value.toDouble();
  }
  double get_lr() const override { return lr; }
  void set_lr(double value) override { lr = value; }
};

class ManyShapes : public torch::optim::Optimizer {
 public:
  ManyShapes(std::vector<Tensor> parameters, const ManyShapesOptions& options)
      : Optimizer(std::move(parameters), std::make_unique<ManyShapesOptions>(options)) {}
  Tensor step(LossClosure = nullptr) override;
};

struct MatrixOptimizer {
  const char* name;
  MakeOptimizer saved;
  MakeOptimizer fresh;  // with other numbers, which the checkpoint must replace
};
const std::vector<MatrixOptimizer>& matrix_optimizers();

// Uneven rows, fewer rows than ranks, tied, frozen, unused, 0-dim, empty, integer and half
// precision.
std::vector<ParameterSpec> matrix_model();
// One buffer of each dtype that a checkpoint can hold, with other bytes in each.
std::vector<NamedBuffer> matrix_buffers(bool other_values);

struct MatrixCase {
  int saved = 1;
  int loaded = 1;
  StateDictKind kind = StateDictKind::kSharded;
  StateDictKind asked = StateDictKind::kSharded;
  size_t optimizer = 0;
  bool skewed_save = false;
  bool skewed_load = false;
  bool trained = false;  // the loading run has stepped before, so its optimizer has states

  std::string describe() const;
};

std::vector<MatrixCase> all_matrix_cases();
// So few of them that every pair of values of two factors is there.
std::vector<MatrixCase> pairwise_matrix_cases();

}  // namespace tessera::checkpoint
