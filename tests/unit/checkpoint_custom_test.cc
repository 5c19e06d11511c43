// Optimizers that nobody foresaw: states of several shapes and types, nested, lazily made, with and
// without load(), and states that do not serialise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/manifest.h"
#include "tessera/error.h"
#include "unit/checkpoint_fleet.h"
#include "unit/io_temp_directory.h"

namespace tessera::checkpoint {
namespace {

using io::TempDirectory;
using testing::AllOf;
using testing::HasSubstr;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

struct OddState : torch::optim::OptimizerCloneableParamState<OddState> {
  Tensor full, rows, fixed, optional;
  std::vector<Tensor> history;
  int64_t count = 0;
  double scale = 0;
  bool flag = false;
  std::string note;
  std::vector<int64_t> numbers;
  double inner = 0;

  void serialize(OutputArchive& archive) const override {
    archive.write("full", full, /*is_buffer=*/true);
    archive.write("rows", c10::IValue(rows));
    archive.write("fixed", c10::IValue(fixed));
    if (optional.defined()) archive.write("optional", c10::IValue(optional));
    archive.write("history", c10::IValue(history));
    archive.write("count", c10::IValue(count));
    archive.write("scale", c10::IValue(scale));
    archive.write("flag", c10::IValue(flag));
    archive.write("note", c10::IValue(note));
    archive.write("numbers", c10::IValue(numbers));
    OutputArchive nested(archive.compilation_unit());
    nested.write("inner", c10::IValue(inner));
    archive.write("nested", nested);
  }
  void serialize(InputArchive& archive) override {
    archive.read("full", full, /*is_buffer=*/true);
    const auto read = [&](const char* name) {
      c10::IValue value;
      archive.read(name, value);
      return value;
    };
    rows = read("rows").toTensor();
    fixed = read("fixed").toTensor();
    c10::IValue value;
    optional = archive.try_read("optional", value) ? value.toTensor() : Tensor();
    history = read("history").toTensorVector();
    count = read("count").toInt();
    scale = read("scale").toDouble();
    flag = read("flag").toBool();
    note = read("note").toStringRef();
    numbers = read("numbers").toIntVector();
    InputArchive nested;
    archive.read("nested", nested);
    nested.read("inner", value);
    inner = value.toDouble();
  }
};

struct OddOptions : torch::optim::OptimizerCloneableOptions<OddOptions> {
  double lr = 0.1;
  std::optional<int64_t> period;
  void serialize(OutputArchive& archive) const override {
    archive.write("lr", c10::IValue(lr));
    archive.write("period", c10::IValue(period));
  }
  void serialize(InputArchive& archive) override {
    c10::IValue value;
    archive.read("lr", value);
    lr = value.toDouble();
    archive.read("period", value);
    period = value.toOptional<int64_t>();
  }
  double get_lr() const override { return lr; }
  void set_lr(double value) override { lr = value; }
};

// Makes its states at the first step; has neither save() nor load().
class Odd : public torch::optim::Optimizer {
 public:
  explicit Odd(std::vector<Tensor> parameters, double lr = 0.1)
      : Optimizer(std::move(parameters), make(lr)) {}
  Tensor step(LossClosure = nullptr) override {
    torch::NoGradGuard no_grad;
    for (auto& group : param_groups_)
      for (Tensor& parameter : group.params())
        if (parameter.grad().defined())
          update(parameter, static_cast<OddOptions&>(group.options()).lr);
    return {};
  }

 private:
  static std::unique_ptr<OddOptions> make(double lr) {
    auto options = std::make_unique<OddOptions>();
    options->lr = lr;
    if (lr < 0.5) options->period = 12;
    return options;
  }
  void update(Tensor& parameter, double lr) {
    auto& slot = state_[parameter.unsafeGetTensorImpl()];
    if (!slot) {
      auto made = std::make_unique<OddState>();
      made->full = torch::zeros_like(parameter);
      made->rows = torch::zeros({parameter.dim() == 0 ? 1 : parameter.size(0)}, torch::kDouble);
      made->fixed = torch::zeros({3});
      made->history = {torch::zeros_like(parameter), torch::zeros({2}, torch::kLong)};
      slot = std::move(made);
    }
    auto& state = static_cast<OddState&>(*slot);
    const Tensor gradient = parameter.grad();
    state.full.mul_(0.9).add_(gradient);
    if (gradient.dim() > 0 && gradient.size(0) > 0)
      state.rows.add_(gradient.reshape({gradient.size(0), -1}).to(torch::kDouble).abs().amax(1));
    state.fixed.add_(1);
    state.history[0].add_(2 * gradient);
    state.history[1].add_(3);
    ++state.count;
    state.scale = 1.0 / static_cast<double>(state.count + 2);
    state.flag = state.count % 2 == 1;
    state.note = "step " + std::to_string(state.count) + "\n\"quoted\"";
    state.numbers = {state.count, -state.count};
    state.inner = static_cast<double>(state.count) * 0.1;
    parameter.sub_(lr * state.full * state.scale);
  }
};

struct Case {
  int saved, loaded;
};

std::vector<ParameterSpec> model() {
  return {{"a", {7, 5}}, {"b", {3, 4, 2}}, {"tall", {11, 1}}, {"bias", {6}}};
}

MakeOptimizer odd(double lr = 0.1) {
  return [lr](std::vector<Tensor> parameters) {
    return std::make_unique<Odd>(std::move(parameters), lr);
  };
}

class CheckpointCustom : public testing::Test {
 protected:
  void save(int world, const MakeOptimizer& make, const CkptSpec& spec = {}) {
    expect_no_errors(test::run_ranks(world, [&](comm::Communicator& communicator) {
      FleetRank rank(model(), communicator.rank(), world, make);
      rank.train(0, 3);
      save_state(io::real_file_system(), rank.live(communicator), spec, {path_, false}, 3,
                 SaveOptions().sync(false));
    }));
  }
  TempDirectory temp_;
  const std::string path_ = temp_ / "c";
};

// BL-06
TEST_F(CheckpointCustom, StatesOfAnyShapeAndTypeAtAnyWorld) {
  for (const auto kind : {StateDictKind::kSharded, StateDictKind::kFull}) {
    for (const Case worlds : {Case{1, 1}, Case{1, 3}, Case{3, 2}, Case{2, 3}, Case{3, 1}}) {
      SCOPED_TRACE(c10::str(worlds.saved, " to ", worlds.loaded));
      TempDirectory temp;
      const std::string path = temp / "c";
      FleetRank reference(model(), 0, 1, odd());
      reference.train(0, 3);
      expect_no_errors(test::run_ranks(worlds.saved, [&](comm::Communicator& communicator) {
        FleetRank rank(model(), communicator.rank(), worlds.saved, odd());
        rank.train(0, 3);
        save_state(io::real_file_system(), rank.live(communicator), CkptSpec().kind(kind),
                   {path, false}, 3, SaveOptions().sync(false));
      }));
      FleetRank later(model(), 0, 1, odd());
      later.train(0, 5);
      expect_no_errors(test::run_ranks(worlds.loaded, [&](comm::Communicator& communicator) {
        FleetRank rank(model(), communicator.rank(), worlds.loaded, odd(0.9), even_split, 3);
        LiveState live = rank.live(communicator);
        live.factory = [] { return std::make_unique<OddState>(); };
        load_state(io::real_file_system(), path, live, CkptSpec().kind(kind), {});
        const auto& state = static_cast<const OddState&>(
            *rank.optimizer->state().at(rank.parameters[0].leaf.unsafeGetTensorImpl()));
        const auto& expected = static_cast<const OddState&>(
            *reference.optimizer->state().at(reference.parameters[0].leaf.unsafeGetTensorImpl()));
        EXPECT_TRUE(torch::equal(state.rows, rows_of(expected.rows, rank.parameters[0])));
        EXPECT_TRUE(torch::equal(state.fixed, expected.fixed));
        EXPECT_FALSE(state.optional.defined());
        EXPECT_TRUE(
            torch::equal(state.history[0], rows_of(expected.history[0], rank.parameters[0])));
        EXPECT_EQ(state.note, expected.note);
        EXPECT_EQ(state.scale, expected.scale);
        EXPECT_EQ(state.numbers, expected.numbers);
        EXPECT_EQ(state.inner, expected.inner);
        EXPECT_EQ(state.flag, expected.flag);
        const auto& options =
            static_cast<const OddOptions&>(rank.optimizer->param_groups()[0].options());
        EXPECT_EQ(options.lr, 0.1);
        EXPECT_EQ(options.period, 12);
        rank.train(3, 2);
        const auto& trained = static_cast<const OddState&>(
            *rank.optimizer->state().at(rank.parameters[0].leaf.unsafeGetTensorImpl()));
        EXPECT_EQ(trained.count, 5);
        EXPECT_TRUE(torch::equal(rank.parameters[1].leaf,
                                 rows_of(later.parameters[1].leaf, rank.parameters[1])));
      }));
    }
  }
}

TEST_F(CheckpointCustom, WithoutLoadAStateIsClonedOrMadeByTheFactory) {
  save(2, odd());
  expect_no_errors(test::run_ranks(2, [&](comm::Communicator& communicator) {
    FleetRank lazy(model(), communicator.rank(), 2, odd(), even_split, 3);
    EXPECT_THAT(test::message_of([&]() -> std::exception_ptr {
                  try {
                    load_state(io::real_file_system(), path_, lazy.live(communicator), {}, {});
                    return nullptr;
                  } catch (const LayoutError&) {
                    return std::current_exception();
                  }
                }()),
                AllOf(HasSubstr("'a' cannot be created"), HasSubstr("state_factory")));
    EXPECT_TRUE(lazy.optimizer->state().empty());
    FleetRank stepped(model(), communicator.rank(), 2, odd(), even_split, 3);
    stepped.train(0, 1);
    load_state(io::real_file_system(), path_, stepped.live(communicator), {}, {});
    EXPECT_EQ(stepped.state("b").at("count").toInt(), 3);
  }));
}

TEST_F(CheckpointCustom, AStateThatDoesNotSerialiseIsRefusedByName) {
  struct Mute : torch::optim::OptimizerParamState {};
  expect_no_errors(test::run_ranks(2, [&](comm::Communicator& communicator) {
    FleetRank rank(model(), communicator.rank(), 2, odd());
    rank.train(0, 1);
    rank.optimizer->state()[rank.parameters[1].leaf.unsafeGetTensorImpl()] =
        std::make_unique<Mute>();
    try {
      save_state(io::real_file_system(), rank.live(communicator), {}, {path_, false}, 1, {});
      ADD_FAILURE();
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("'b'"), HasSubstr("Mute")));
    }
  }));
  EXPECT_FALSE(io::real_file_system().exists(path_));
}

// BL-14: a value that is stored once must be the same everywhere; LOCAL keeps each rank's.
TEST_F(CheckpointCustom, AStateThatDiffersBetweenRanksIsRefusedUnlessLocal) {
  for (const auto kind : {StateDictKind::kSharded, StateDictKind::kFull, StateDictKind::kLocal}) {
    expect_no_errors(test::run_ranks(2, [&](comm::Communicator& communicator) {
      FleetRank rank(model(), communicator.rank(), 2, odd());
      rank.train(0, 1);
      auto& state = static_cast<OddState&>(
          *rank.optimizer->state().at(rank.parameters[0].leaf.unsafeGetTensorImpl()));
      state.fixed = torch::full({3}, communicator.rank());
      const std::string path = temp_ / c10::str("k", static_cast<int>(kind));
      try {
        save_state(io::real_file_system(), rank.live(communicator), CkptSpec().kind(kind),
                   {path, false}, 1, {});
        EXPECT_EQ(kind, StateDictKind::kLocal);
      } catch (const LayoutError& error) {
        EXPECT_NE(kind, StateDictKind::kLocal);
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr("'optim.state.a.fixed'"), HasSubstr("differs between ranks")));
        return;
      }
      FleetRank loaded(model(), communicator.rank(), 2, odd(), even_split, 3);
      loaded.train(0, 2);
      load_state(io::real_file_system(), path, loaded.live(communicator), CkptSpec().kind(kind),
                 {});
      EXPECT_TRUE(torch::equal(loaded.state("a").at("fixed").toTensor(),
                               torch::full({3}, communicator.rank())));
    }));
  }
}

TEST_F(CheckpointCustom, DifferencesBetweenRanksAreNamed) {
  using Change = std::function<void(FleetRank&)>;
  const auto complaint = [&](const Change& on_rank_1) {
    std::vector<std::string> messages(2);
    expect_no_errors(test::run_ranks(2, [&](comm::Communicator& communicator) {
      FleetRank rank(model(), communicator.rank(), 2, odd());
      rank.train(0, 1);
      if (communicator.rank() == 1) on_rank_1(rank);
      try {
        save_state(io::real_file_system(), rank.live(communicator), {}, {path_, false}, 1, {});
      } catch (const LayoutError& error) {
        messages[static_cast<size_t>(communicator.rank())] = error.what();
      }
    }));
    EXPECT_EQ(messages[0], messages[1]);
    return messages[0];
  };
  const auto state = [](FleetRank& rank) -> OddState& {
    return static_cast<OddState&>(
        *rank.optimizer->state().at(rank.parameters[0].leaf.unsafeGetTensorImpl()));
  };
  EXPECT_THAT(
      complaint([&](FleetRank& rank) { state(rank).count = 9; }),
      AllOf(HasSubstr("'optim.state.a.count'"), HasSubstr("is 1 on rank 0 and 9 on rank 1")));
  EXPECT_THAT(complaint([&](FleetRank& rank) { state(rank).scale = 9; }),
              AllOf(HasSubstr("scale"), HasSubstr("rank 1")));
  EXPECT_THAT(complaint([&](FleetRank& rank) { state(rank).optional = torch::ones({2}); }),
              AllOf(HasSubstr("'optim.state.a.optional'"),
                    HasSubstr("exists on rank 1 but not on rank 0")));
  EXPECT_THAT(complaint([&](FleetRank& rank) { state(rank).fixed = torch::ones({4}); }),
              AllOf(HasSubstr("'optim.state.a.fixed'"), HasSubstr("another shape")));
  EXPECT_THAT(complaint([&](FleetRank& rank) { rank.optimizer->state().clear(); }),
              HasSubstr("exists on rank 0 but not on rank 1"));
  EXPECT_FALSE(io::real_file_system().exists(path_));
}

}  // namespace
}  // namespace tessera::checkpoint
