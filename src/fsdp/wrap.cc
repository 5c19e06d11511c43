// fully_shard: assigns parameters to units, checks that all ranks hold the same model, plans the flat
// layout. install.cc then allocates and swaps the tensors.
#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "fsdp/engine.h"
#include "fsdp/unit_assignment.h"
#include "io/checksum.h"
#include "layout/flat_layout.h"
#include "tessera/error.h"
#include "util/log.h"

namespace tessera {
namespace {

using fsdp::AssignedParam;
using fsdp::UnitAssignment;

std::string describe_param(const AssignedParam& param) {
  return param.fqn + c10::str(" ", param.tensor.sizes(), " ", param.tensor.scalar_type());
}

void check_devices(const UnitAssignment& assignment, torch::Device device) {
  for (const AssignedParam& param : assignment.params) {
    if (param.tensor.device() == device) continue;
    throw UsageError("fully_shard: parameter " + param.fqn + " is on " + param.tensor.device().str() + ", but the ranks train on " +
                     device.str() + ": call model->to(runtime.device()) first");
  }
}

// One line a parameter: name, shape, dtype, and a digest of the values where they must agree.
std::vector<std::string> signatures(const UnitAssignment& assignment, bool with_values) {
  std::vector<std::string> out;
  for (const AssignedParam& param : assignment.params) {
    std::string line = describe_param(param);
    if (with_values) {
      const torch::Tensor values = param.tensor.detach().cpu().contiguous();
      line += " values " + std::to_string(io::hash_bytes(values.data_ptr(), values.nbytes()));
    }
    out.push_back(std::move(line));
  }
  return out;
}

std::string join_lines(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out.append(line).push_back('\n');
  return out;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

// Different seeds, or different models, would mix silently.
void compare_ranks(const UnitAssignment& assignment, comm::Communicator& comm, bool with_values) {
  if (comm.world_size() == 1) return;
  const std::vector<std::string> mine = signatures(assignment, with_values);
  const std::vector<std::string> all = comm.all_gather_bytes(join_lines(mine));
  for (int r = 0; r < comm.world_size(); ++r) {
    if (all[static_cast<size_t>(r)] == all[0]) continue;
    const auto first = split_lines(all[0]);
    const auto other = split_lines(all[static_cast<size_t>(r)]);
    size_t i = 0;
    while (i < first.size() && i < other.size() && first[i] == other[i]) ++i;
    const std::string on_first = i < first.size() ? first[i] : "no further parameter";
    const std::string on_other = i < other.size() ? other[i] : "no further parameter";
    throw LayoutError("ranks hold different models: parameter number " + std::to_string(i) + " is \"" + on_first +
                      "\" on rank 0 and \"" + on_other + "\" on rank " + std::to_string(r) +
                      (with_values ? "; seed all ranks alike, or use initial_values(InitialValues::kFromRank0)" : ""));
  }
}

void take_rank0_values(UnitAssignment& assignment, comm::Communicator& comm) {
  if (comm.world_size() == 1) return;
  torch::NoGradGuard no_grad;
  for (AssignedParam& param : assignment.params) {
    torch::Tensor values = param.tensor.detach().contiguous();
    comm.broadcast(values, 0);
    if (!values.is_alias_of(param.tensor)) param.tensor.detach().copy_(values);
  }
}

// Below this, gathering everything at once costs nothing worth a message.
constexpr int64_t kLargeModel = 1'000'000;

void warn_about_large_unit(const fsdp::Engine& engine, bool units_by_default) {
  int64_t all = 0;
  for (const auto& param : engine.params()) all += param->numel();
  for (const auto& unit : engine.units()) {
    int64_t numel = 0;
    for (const fsdp::Param* param : unit->params) numel += param->numel();
    if (numel * 2 <= all || all < kLargeModel) continue;
    log::warning_rank0("unit " + unit->name + " holds " + std::to_string(numel) + " of " + std::to_string(all) +
                       " parameters, which are gathered together" +
                       (units_by_default ? "; name the units with FsdpOptions().unit<BlockImpl>()" : ""));
  }
}

// Parameters of one dtype within a unit share flat buffers.
void plan_buffers(fsdp::Engine& engine, fsdp::Unit& unit) {
  std::map<torch::Dtype, std::vector<fsdp::Param*>> by_dtype;
  for (fsdp::Param* param : unit.params) by_dtype[param->full.scalar_type()].push_back(param);
  const int world = engine.mesh().world_size();
  for (auto& [dtype, params] : by_dtype) {
    std::vector<layout::ParamShape> shapes;
    for (const fsdp::Param* param : params) shapes.push_back(layout::param_shape(param->shape));
    const auto plan = layout::plan_unit(shapes, static_cast<int64_t>(c10::elementSize(dtype)), world);
    for (size_t b = 0; b < plan.buffers.size(); ++b) {
      auto buffer = std::make_unique<fsdp::FlatBuffer>();
      buffer->unit = &unit;
      buffer->dtype = dtype;
      buffer->segment_numel = plan.buffers[b].segment_numel;
      buffer->numel = plan.buffer_numel(static_cast<int>(b));
      for (const int index : plan.buffers[b].params) {
        fsdp::Param* param = params[static_cast<size_t>(index)];
        param->buffer = buffer.get();
        param->offset = plan.params[static_cast<size_t>(index)].offset;
        param->rows = plan.rows_of(index, engine.mesh().rank());
        buffer->params.push_back(param);
      }
      unit.buffers.push_back(buffer.get());
      engine.buffers().push_back(std::move(buffer));
    }
  }
}

void build_units(fsdp::Engine& engine, UnitAssignment& assignment) {
  for (size_t i = 0; i < assignment.unit_names.size(); ++i) {
    auto unit = std::make_unique<fsdp::Unit>();
    unit->engine = &engine;
    unit->index = static_cast<int>(i);
    unit->name = assignment.unit_names[i];
    unit->is_root = i == 0;
    engine.units().push_back(std::move(unit));
  }
  for (AssignedParam& assigned : assignment.params) {
    auto param = std::make_unique<fsdp::Param>();
    param->fqn = assigned.fqn;
    param->aliases = assigned.aliases;
    param->shape = assigned.tensor.sizes().vec();
    param->full = assigned.tensor;
    param->requires_grad = assigned.tensor.requires_grad();
    fsdp::Unit& unit = *engine.units()[static_cast<size_t>(assigned.unit)];
    param->index = static_cast<int>(unit.params.size());
    unit.params.push_back(param.get());
    engine.params().push_back(std::move(param));
  }
  for (auto& unit : engine.units()) plan_buffers(engine, *unit);
}

}  // namespace

Sharded fully_shard(torch::nn::Module& module, const Mesh& mesh, const FsdpOptions& options) {
  UnitAssignment assignment = fsdp::assign_units(module, options);
  if (assignment.params.empty()) throw UsageError("fully_shard: the module has no parameters");
  check_devices(assignment, mesh.device());
  const bool compare = options.initial_values() == InitialValues::kCompare;
  compare_ranks(assignment, *mesh.communicator(), compare);
  if (!compare) take_rank0_values(assignment, *mesh.communicator());
  auto engine = std::make_shared<fsdp::Engine>(module, mesh, options);
  build_units(*engine, assignment);
  warn_about_large_unit(*engine, assignment.units_by_default);
  engine->install();
  return Sharded(std::move(engine));
}

}  // namespace tessera
