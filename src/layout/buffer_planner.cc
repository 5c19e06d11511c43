#include "layout/buffer_planner.h"

#include <algorithm>
#include <numeric>

namespace tessera::layout {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The least common multiple, or nothing where it exceeds `cap`.
std::optional<int64_t> capped_lcm(int64_t a, int64_t b, int64_t cap) {
  const int64_t factor = b / std::gcd(a, b);
  if (a > cap / factor) return std::nullopt;
  return a * factor;
}

// x with a * x = 1 (mod modulus), for coprime arguments.
int64_t inverse_mod(int64_t a, int64_t modulus) {
  int64_t r0 = modulus, r1 = a % modulus, t0 = 0, t1 = 1;
  while (r1 != 0) {
    const int64_t quotient = r0 / r1;
    std::swap(r0 -= quotient * r1, r1);
    std::swap(t0 -= quotient * t1, t1);
  }
  return (t0 % modulus + modulus) % modulus;
}

// The smallest offset >= cursor that is a multiple of `alignment` and lies a whole number of rows
// before `boundary`; nothing where no such offset exists at or below it.
std::optional<int64_t> offset_before(int64_t cursor, int64_t boundary, int64_t row,
                                     int64_t alignment) {
  const int64_t common = std::gcd(row, alignment);
  if (boundary % common != 0) return std::nullopt;
  const int64_t step_rows = row / common;  // offset = alignment * t, t known modulo this
  const int64_t target = boundary / common % step_rows;
  const auto t = static_cast<int64_t>(static_cast<__int128>(target) *
                                      inverse_mod(alignment / common, step_rows) % step_rows);
  const int64_t period = alignment * step_rows;
  const int64_t first = alignment * t;
  const int64_t offset = first >= cursor ? first - (first - cursor) / period * period
                                         : first + round_up(cursor - first, period);
  if (offset > boundary) return std::nullopt;
  return offset;
}

// Unplaced short parameters by size: the largest that fits a gap in near-constant time.
class FillerPool {
 public:
  FillerPool(std::span<const ParamShape> members, std::vector<int> by_size)
      : members_(members), by_size_(std::move(by_size)), lower_(by_size_.size() + 1) {
    std::iota(lower_.begin(), lower_.end(), size_t{0});
  }
  // Removes and returns the largest member of at most `limit` elements; -1 where there is none.
  int take_largest(int64_t limit) {
    const auto end =
        std::upper_bound(by_size_.begin(), by_size_.end(), limit,
                         [&](int64_t value, int member) { return value < numel(member); });
    const size_t slot = find(static_cast<size_t>(end - by_size_.begin()));
    return slot == 0 ? -1 : take_slot(slot);
  }
  bool empty() { return find(by_size_.size()) == 0; }
  // Calls visit(slot, member) for unplaced members from the largest down until it returns false.
  template <typename Visit>
  void visit_descending(Visit visit) {
    for (size_t slot = find(by_size_.size()); slot != 0; slot = find(slot - 1)) {
      if (!visit(slot, by_size_[slot - 1])) return;
    }
  }
  int take_slot(size_t slot) {
    lower_[slot] = slot - 1;
    return by_size_[slot - 1];
  }

 private:
  int64_t numel(int member) const { return members_[static_cast<size_t>(member)].numel(); }
  size_t find(size_t slot) {
    while (lower_[slot] != slot) {
      lower_[slot] = lower_[lower_[slot]];
      slot = lower_[slot];
    }
    return slot;
  }

  std::span<const ParamShape> members_;
  std::vector<int> by_size_;   // ascending
  std::vector<size_t> lower_;  // slot s stands for by_size_[s - 1]; 0 is the end
};

// One attempt with one segment size.
class Placer {
 public:
  Placer(std::span<const ParamShape> members, std::span<const int> by_size, int64_t alignment,
         int64_t segment, int world_size)
      : members_(members),
        alignment_(alignment),
        segment_(segment),
        end_(segment * world_size),
        pool_(members, shorter(members, by_size, segment)) {
    plan_.segment_numel = segment;
    plan_.offsets.assign(members.size(), 0);
    const auto first_long = by_size.begin() + static_cast<int64_t>(pool_size_);
    long_.assign(first_long, by_size.end());
    std::stable_sort(long_.begin(), long_.end(), [&](int a, int b) {
      const ParamShape& x = shape(a);
      const ParamShape& y = shape(b);
      if (x.row_numel != y.row_numel) return x.row_numel > y.row_numel;
      return x.numel() > y.numel();
    });
  }

  std::optional<BufferPlan> run() {
    for (const int member : long_) {
      if (shape(member).numel() > 2 * segment_ && segment_ % shape(member).row_numel != 0) {
        return std::nullopt;
      }
    }
    for (const int member : long_) {
      const std::optional<int64_t> offset = earliest(member);
      if (!offset || *offset + shape(member).numel() > end_) return std::nullopt;
      fill_until(*offset);
      place(member, *offset);
    }
    return place_pool() ? std::optional(std::move(plan_)) : std::nullopt;
  }

 private:
  // At a boundary where no parameter fits whole, so many are tried for the smallest gap.
  static constexpr int kCrossingTries = 256;

  std::vector<int> shorter(std::span<const ParamShape> members, std::span<const int> by_size,
                           int64_t segment) {
    const auto end = std::partition_point(by_size.begin(), by_size.end(), [&](int member) {
      return members[static_cast<size_t>(member)].numel() <= segment;
    });
    pool_size_ = static_cast<size_t>(end - by_size.begin());
    return {by_size.begin(), end};
  }

  const ParamShape& shape(int member) const { return members_[static_cast<size_t>(member)]; }
  int64_t boundary_after(int64_t offset) const { return (offset / segment_ + 1) * segment_; }

  void place(int member, int64_t offset) {
    plan_.offsets[static_cast<size_t>(member)] = offset;
    plan_.order.push_back(member);
    cursor_ = round_up(offset + shape(member).numel(), alignment_);
  }

  // The first legal offset at or after the cursor.
  std::optional<int64_t> earliest(int member) const {
    const ParamShape& param = shape(member);
    int64_t cursor = cursor_;
    for (int segments = 0; segments < 2; ++segments) {
      const int64_t boundary = boundary_after(cursor);
      if (cursor + param.numel() <= boundary) return cursor;
      if (segment_ % param.row_numel == 0) {
        return round_up(cursor, std::lcm(param.row_numel, alignment_));
      }
      const auto offset = offset_before(cursor, boundary, param.row_numel, alignment_);
      if (offset && *offset < boundary && *offset + param.numel() <= boundary + segment_) {
        return offset;
      }
      cursor = round_up(boundary, alignment_);
    }
    return std::nullopt;
  }

  void fill_until(int64_t offset) {
    while (cursor_ < offset) {
      const int64_t limit = std::min(offset, boundary_after(cursor_));
      const int member = pool_.take_largest(limit - cursor_);
      if (member >= 0) {
        place(member, cursor_);
      } else {
        cursor_ = round_up(limit, alignment_);
      }
    }
  }

  bool place_pool() {
    while (!pool_.empty()) {
      const int64_t boundary = boundary_after(cursor_);
      int member = pool_.take_largest(boundary - cursor_);
      int64_t offset = cursor_;
      if (member < 0) {
        const auto [slot, best] = best_crossing(boundary);
        if (slot == 0) {
          cursor_ = round_up(boundary, alignment_);
          if (cursor_ >= end_) return false;
          continue;
        }
        member = pool_.take_slot(slot);
        offset = best;
      }
      if (offset + shape(member).numel() > end_) return false;
      place(member, offset);
    }
    return true;
  }

  // The unplaced member that can start closest to the cursor and cross `boundary`.
  std::pair<size_t, int64_t> best_crossing(int64_t boundary) {
    std::pair<size_t, int64_t> best{0, boundary};
    int tries = 0;
    pool_.visit_descending([&](size_t slot, int member) {
      const std::optional<int64_t> offset = earliest(member);
      if (offset && *offset < best.second) best = {slot, *offset};
      return best.second > cursor_ && ++tries < kCrossingTries;
    });
    return best;
  }

  std::span<const ParamShape> members_;
  const int64_t alignment_;
  const int64_t segment_;
  const int64_t end_;
  size_t pool_size_ = 0;
  FillerPool pool_;
  std::vector<int> long_;
  int64_t cursor_ = 0;
  BufferPlan plan_;
};

// Which segment sizes to try for one set of parameters.
class SegmentSearch {
 public:
  SegmentSearch(std::span<const ParamShape> members, int64_t alignment, int world_size)
      : members_(members),
        alignment_(alignment),
        world_size_(world_size),
        largest_(largest_segment(members, alignment, world_size)),
        tries_left_(std::max<int64_t>(kMinTries, kMemberTries / std::ssize(members))) {
    by_size_.resize(members.size());
    std::iota(by_size_.begin(), by_size_.end(), 0);
    std::stable_sort(by_size_.begin(), by_size_.end(),
                     [&](int a, int b) { return shape(a).numel() < shape(b).numel(); });
    int64_t total = 0;
    int64_t widest_gap = 0;  // the parameter with the widest alignment gap may be the last one
    for (const ParamShape& param : members) {
      const int64_t rounded = round_up(param.numel(), alignment);
      total += rounded;
      widest_gap = std::max(widest_gap, rounded - param.numel());
    }
    smallest_ = std::max<int64_t>(1, (total - widest_gap + world_size - 1) / world_size);
  }

  std::optional<BufferPlan> run(int64_t granule) {
    best_.reset();
    std::optional<int64_t> multiple = granule;
    std::vector<int64_t> optional_rows;
    for (auto it = by_size_.rbegin(); it != by_size_.rend(); ++it) {
      const ParamShape& param = shape(*it);
      if (param.numel() <= smallest_) break;
      if (param.numel() > 2 * largest_) {  // crosses two boundaries whatever the segment
        multiple = capped_lcm(*multiple, param.row_numel, largest_);
        if (!multiple) return std::nullopt;
      } else if (std::ssize(optional_rows) < kOptionalRows &&
                 std::find(optional_rows.begin(), optional_rows.end(), param.row_numel) ==
                     optional_rows.end()) {
        optional_rows.push_back(param.row_numel);
      }
    }
    try_multiples_of(*multiple);
    for (const int64_t row : optional_rows) {
      const std::optional<int64_t> next = capped_lcm(*multiple, row, largest_);
      if (!next || *next == *multiple) continue;
      multiple = next;
      try_multiples_of(*multiple);
    }
    return std::move(best_);
  }

 private:
  static constexpr int64_t kMinTries = 24;
  static constexpr int64_t kMemberTries = 400'000;
  static constexpr int kOptionalRows = 8;

  const ParamShape& shape(int member) const { return members_[static_cast<size_t>(member)]; }

  void try_multiples_of(int64_t multiple) {
    const int64_t first = round_up(smallest_, multiple);
    for (int64_t extra = 0; first + extra <= largest_; extra = extra == 0 ? multiple : 2 * extra) {
      const int64_t segment = first + extra;
      if (best_ && segment >= best_->segment_numel) return;
      if (--tries_left_ < 0) return;
      auto plan = Placer(members_, by_size_, alignment_, segment, world_size_).run();
      if (plan) {
        best_ = std::move(plan);
        return;
      }
    }
  }

  std::span<const ParamShape> members_;
  const int64_t alignment_;
  const int world_size_;
  const int64_t largest_;
  int64_t smallest_ = 0;
  int64_t tries_left_;
  std::vector<int> by_size_;
  std::optional<BufferPlan> best_;
};

}  // namespace

int64_t alignment_numel(int64_t element_size) {
  return kAlignmentBytes / std::gcd(kAlignmentBytes, element_size);
}

int64_t largest_segment(std::span<const ParamShape> members, int64_t alignment, int world_size) {
  int64_t payload = 0;
  int64_t largest_row = 0;
  for (const ParamShape& param : members) {
    payload += param.numel();
    largest_row = std::max(largest_row, param.row_numel);
  }
  const int64_t gaps = alignment * (std::ssize(members) + world_size);
  return (payload + payload / 50 + gaps) / world_size + largest_row;
}

std::optional<BufferPlan> plan_buffer(std::span<const ParamShape> members, int64_t alignment,
                                      int world_size) {
  // Aligned segments first; where rows of odd length forbid them, segments of whole rows.
  for (const int64_t granule : {alignment, int64_t{1}}) {
    auto plan = SegmentSearch(members, alignment, world_size).run(granule);
    if (plan) return plan;
  }
  return std::nullopt;
}

}  // namespace tessera::layout
