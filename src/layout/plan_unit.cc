#include <algorithm>
#include <map>

#include "layout/buffer_planner.h"
#include "layout/flat_layout.h"
#include "tessera/error.h"

namespace tessera::layout {
namespace {

class UnitPlanner {
 public:
  UnitPlanner(std::span<const ParamShape> params, int64_t element_size, int world_size)
      : alignment_(alignment_numel(element_size)) {
    unit_.world_size = world_size;
    unit_.element_size = element_size;
    for (const ParamShape& shape : params) unit_.params.push_back({0, 0, shape});
  }

  UnitLayout run() && {
    std::vector<int> rest;
    std::vector<int> empty;
    for (int i = 0; i < static_cast<int>(unit_.params.size()); ++i) {
      (shape(i).numel() == 0 ? empty : rest).push_back(i);
    }
    while (!rest.empty()) {
      std::vector<int> later;
      while (!add_buffer(rest)) {
        std::vector<int> split = split_off(rest);
        later.insert(later.end(), split.begin(), split.end());
      }
      std::sort(later.begin(), later.end());
      rest = std::move(later);
    }
    add_empty(empty);
    return std::move(unit_);
  }

 private:
  const ParamShape& shape(int param) const {
    return unit_.params[static_cast<size_t>(param)].shape;
  }

  bool add_buffer(const std::vector<int>& members) {
    std::vector<ParamShape> shapes;
    shapes.reserve(members.size());
    for (const int param : members) shapes.push_back(shape(param));
    const auto plan = plan_buffer(shapes, alignment_, unit_.world_size);
    if (!plan) return false;
    FlatBufferLayout buffer;
    buffer.segment_numel = plan->segment_numel;
    for (const int member : plan->order) {
      const int param = members[static_cast<size_t>(member)];
      buffer.params.push_back(param);
      unit_.params[static_cast<size_t>(param)].buffer = static_cast<int>(unit_.buffers.size());
      unit_.params[static_cast<size_t>(param)].offset = plan->offsets[static_cast<size_t>(member)];
    }
    unit_.buffers.push_back(std::move(buffer));
    return true;
  }

  // Leaves in `members` what goes well together and returns the rest: the row length that most
  // elements have, with all row lengths that divide it; or, where that is everything, all but the
  // largest parameter.
  std::vector<int> split_off(std::vector<int>& members) const {
    std::map<int64_t, int64_t> elements_by_row;
    for (const int param : members) elements_by_row[shape(param).row_numel] += shape(param).numel();
    const int64_t row =
        std::max_element(elements_by_row.begin(), elements_by_row.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; })
            ->first;
    auto middle = std::stable_partition(members.begin(), members.end(), [&](int param) {
      return row % shape(param).row_numel == 0;
    });
    if (middle == members.end()) {
      const auto largest = std::max_element(members.begin(), members.end(), [&](int a, int b) {
        return shape(a).numel() < shape(b).numel();
      });
      std::rotate(members.begin(), largest, largest + 1);
      middle = members.begin() + 1;
    }
    std::vector<int> rest(middle, members.end());
    members.erase(middle, members.end());
    return rest;
  }

  // Parameters without elements lie at the start of the first buffer, where they cross nothing.
  void add_empty(const std::vector<int>& empty) {
    if (empty.empty()) return;
    if (unit_.buffers.empty()) unit_.buffers.push_back({alignment_, {}});
    std::vector<int>& order = unit_.buffers.front().params;
    order.insert(order.begin(), empty.begin(), empty.end());
  }

  const int64_t alignment_;
  UnitLayout unit_;
};

}  // namespace

UnitLayout plan_unit(std::span<const ParamShape> params, int64_t element_size, int world_size) {
  if (world_size < 1) throw LayoutError("the world size of a layout must be at least 1");
  if (element_size < 1) throw LayoutError("the element size of a layout must be at least 1 byte");
  return UnitPlanner(params, element_size, world_size).run();
}

}  // namespace tessera::layout
