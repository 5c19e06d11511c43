// One suite for every backend: what communicator.h promises, at any number of ranks. Runs in all
// ranks in lockstep; expectations are computed by each rank for itself from what its peers must
// have sent.
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "comm/communicator.h"
#include "support/multirank.h"

namespace tessera::test {
namespace {

using comm::ReduceOp;
using torch::Tensor;

comm::Communicator& communicator() { return *runtime().mesh().communicator(); }
torch::TensorOptions on_device(torch::Dtype dtype) {
  return torch::TensorOptions().dtype(dtype).device(runtime().device());
}
// NCCL chooses the order of its sums; the others sum in rank order.
bool sums_in_rank_order() { return communicator().name() != "nccl"; }

const std::vector<torch::Dtype> kDtypes = {
    torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kInt64,       torch::kInt,
    torch::kShort, torch::kChar,   torch::kByte, torch::kBool,     torch::kComplexFloat};
// Empty, one, odd, and more than one window of shared memory (1 MiB of fp32).
const std::vector<int64_t> kSizes = {0, 1, 3, 1021, (1 << 18) + 1};

// What rank r holds: small whole numbers, exact in every dtype, different on each rank.
Tensor pattern(int r, int64_t n, torch::Dtype dtype, int64_t seed = 0) {
  const Tensor numbers = (torch::arange(n, torch::kInt64) * 7 + r * 37 + seed)
                             .remainder(dtype == torch::kBool ? 2 : 97);
  return numbers.to(runtime().device()).to(dtype);
}

Tensor noise(int r, int64_t n, torch::Dtype dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 + r));
  return torch::randn({n}, generator, torch::kFloat).to(dtype).to(runtime().device());
}

Tensor concatenated(const std::function<Tensor(int)>& part) {
  std::vector<Tensor> parts;
  for (int r = 0; r < world_size(); ++r) parts.push_back(part(r));
  return torch::cat(parts);
}

// The sum in rank order, in fp32 for half types.
Tensor rank_order_sum(const std::function<Tensor(int)>& part) {
  Tensor sum = part(0);
  const torch::Dtype dtype = sum.scalar_type();
  if (dtype == torch::kHalf || dtype == torch::kBFloat16)
    sum = sum.to(torch::kFloat);
  else
    sum = sum.clone();
  for (int r = 1; r < world_size(); ++r) sum.add_(part(r));
  return sum.to(dtype);
}

void expect_bits(const Tensor& actual, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  if (actual.numel() == 0) return;
  const auto bytes = [](const Tensor& tensor) {
    return tensor.cpu().contiguous().view({-1}).view(torch::kByte);
  };
  EXPECT_TRUE(torch::equal(bytes(actual), bytes(expected))) << what;
}

void expect_sum(const Tensor& actual, const Tensor& expected, const std::string& what) {
  const bool exact = sums_in_rank_order() ||
                     !(at::isFloatingType(expected.scalar_type()) || expected.is_complex());
  if (exact) return expect_bits(actual, expected, what);
  EXPECT_TRUE(torch::allclose(actual, expected, 1e-5, 1e-5)) << what;
}

void expect_same_on_all_ranks(const Tensor& tensor, const std::string& what) {
  const Tensor host = tensor.cpu().contiguous();
  const std::string mine(static_cast<const char*>(host.data_ptr()), host.nbytes());
  for (const std::string& other : communicator().all_gather_bytes(mine))
    EXPECT_EQ(other == mine, true) << what;
}

std::string label(torch::Dtype dtype, int64_t n) { return c10::str(dtype, " x ", n); }

TEST(Communicator, KnowsItsRanks) {
  EXPECT_EQ(communicator().rank(), rank());
  EXPECT_EQ(communicator().world_size(), world_size());
  EXPECT_EQ(std::string(communicator().name()), runtime().backend_name());
}

TEST(AllGather, EveryDtypeAndSize) {
  for (const torch::Dtype dtype : kDtypes) {
    for (const int64_t n : kSizes) {
      Tensor out = torch::ones({world_size() * n}, on_device(dtype));
      communicator().all_gather(out, pattern(rank(), n, dtype));
      expect_bits(out, concatenated([&](int r) { return pattern(r, n, dtype); }), label(dtype, n));
    }
  }
}

TEST(AllGather, InPlace) {
  for (const torch::Dtype dtype : kDtypes) {
    for (const int64_t n : kSizes) {
      Tensor out = torch::ones({world_size() * n}, on_device(dtype));
      const Tensor mine = out.narrow(0, rank() * n, n);
      mine.copy_(pattern(rank(), n, dtype, 5));
      communicator().all_gather(out, mine);
      expect_bits(out, concatenated([&](int r) { return pattern(r, n, dtype, 5); }),
                  label(dtype, n));
    }
  }
}

TEST(AllGather, InputIsLeftAlone) {
  const Tensor mine = pattern(rank(), 1021, torch::kFloat);
  Tensor out = torch::empty({world_size() * 1021}, on_device(torch::kFloat));
  communicator().all_gather(out, mine);
  expect_bits(mine, pattern(rank(), 1021, torch::kFloat), "input");
}

TEST(AllGather, ShapesAndStrides) {
  const Tensor square = pattern(rank(), 35, torch::kFloat).view({5, 7}).t();  // not contiguous
  Tensor out = torch::empty({world_size(), 7, 5}, on_device(torch::kFloat));
  communicator().all_gather(out, square);
  for (int r = 0; r < world_size(); ++r)
    expect_bits(out[r], pattern(r, 35, torch::kFloat).view({5, 7}).t().contiguous(), "square");
}

TEST(AllGather, OddBitPatternsSurvive) {
  Tensor mine = torch::empty({4}, torch::kFloat);
  const uint32_t bits[4] = {0x7fc12345u + static_cast<uint32_t>(rank()), 0x80000000u, 0x00000001u,
                            0xff800000u};
  std::memcpy(mine.data_ptr(), bits, sizeof(bits));
  Tensor out = torch::empty({world_size() * 4}, on_device(torch::kFloat));
  communicator().all_gather(out, mine.to(runtime().device()));
  const Tensor host = out.cpu();
  for (int r = 0; r < world_size(); ++r) {
    uint32_t got[4];
    std::memcpy(got, static_cast<const char*>(host.data_ptr()) + r * 16, 16);
    EXPECT_EQ(got[0], 0x7fc12345u + static_cast<uint32_t>(r));
    EXPECT_EQ(got[1], 0x80000000u);
    EXPECT_EQ(got[2], 1u);
    EXPECT_EQ(got[3], 0xff800000u);
  }
}

TEST(ReduceScatter, WholeNumbersInEveryDtype) {
  for (const torch::Dtype dtype : kDtypes) {
    if (dtype == torch::kBool || dtype == torch::kChar || dtype == torch::kByte)
      continue;  // sums would not fit
    for (const int64_t n : kSizes) {
      const auto input = [&](int r) { return pattern(r, world_size() * n, dtype); };
      Tensor out = torch::full({n}, 7, on_device(dtype));
      communicator().reduce_scatter(out, input(rank()));
      expect_bits(out, rank_order_sum(input).narrow(0, rank() * n, n), label(dtype, n));
    }
  }
}

TEST(ReduceScatter, SumsInRankOrder) {
  for (const torch::Dtype dtype : {torch::kFloat, torch::kDouble}) {
    for (const int64_t n : kSizes) {
      const auto input = [&](int r) { return noise(r, world_size() * n, dtype); };
      Tensor out = torch::empty({n}, on_device(dtype));
      communicator().reduce_scatter(out, input(rank()));
      expect_sum(out, rank_order_sum(input).narrow(0, rank() * n, n), label(dtype, n));
    }
  }
}

// 256 + 1 + 1 + 1 is 256 when every partial sum is rounded to bf16.
Tensor half_input(int r, int64_t n, torch::Dtype dtype) {
  const double large = dtype == torch::kBFloat16 ? 256 : 2048;
  return torch::full({n}, r == 0 ? large : 1.0, on_device(dtype));
}

TEST(ReduceScatter, HalfTypesAreSummedInFp32) {
  for (const torch::Dtype dtype : {torch::kBFloat16, torch::kHalf}) {
    for (const int64_t n : {int64_t{1}, int64_t{1021}, int64_t{300007}}) {
      Tensor out = torch::empty({n}, on_device(dtype));
      communicator().reduce_scatter(out, half_input(rank(), world_size() * n, dtype));
      expect_bits(out, rank_order_sum([&](int r) { return half_input(r, n, dtype); }),
                  label(dtype, n));
      const auto input = [&](int r) { return noise(r, world_size() * n, dtype); };
      communicator().reduce_scatter(out, input(rank()));
      const Tensor expected = rank_order_sum(input).narrow(0, rank() * n, n);
      if (sums_in_rank_order()) expect_bits(out, expected, label(dtype, n));
    }
  }
}

class AllReduce : public testing::TestWithParam<int64_t> {};

TEST_P(AllReduce, SumMaxMin) {
  const int64_t n = GetParam();
  for (const torch::Dtype dtype : {torch::kFloat, torch::kDouble, torch::kInt64, torch::kInt,
                                   torch::kHalf, torch::kBFloat16}) {
    const auto input = [&](int r) {
      return at::isFloatingType(dtype) ? noise(r, n, dtype) : pattern(r, n, dtype);
    };
    Tensor sum = input(rank());
    communicator().all_reduce(sum, ReduceOp::kSum);
    if (at::isFloatingType(dtype) && c10::elementSize(dtype) == 2 && !sums_in_rank_order()) {
      EXPECT_TRUE(torch::allclose(sum.to(torch::kFloat), rank_order_sum(input).to(torch::kFloat),
                                  1e-2, 1e-2));
    } else {
      expect_sum(sum, rank_order_sum(input), "sum of " + label(dtype, n));
    }
    expect_same_on_all_ranks(sum, "sum of " + label(dtype, n));
    Tensor largest = input(rank());
    Tensor smallest = input(rank());
    communicator().all_reduce(largest, ReduceOp::kMax);
    communicator().all_reduce(smallest, ReduceOp::kMin);
    Tensor expected_largest = input(0);
    Tensor expected_smallest = input(0);
    for (int r = 1; r < world_size(); ++r) {
      expected_largest = torch::maximum(expected_largest, input(r));
      expected_smallest = torch::minimum(expected_smallest, input(r));
    }
    expect_bits(largest, expected_largest, "max of " + label(dtype, n));
    expect_bits(smallest, expected_smallest, "min of " + label(dtype, n));
  }
}

TEST_P(AllReduce, HalfTypesAreSummedInFp32) {
  for (const torch::Dtype dtype : {torch::kBFloat16, torch::kHalf}) {
    Tensor sum = half_input(rank(), GetParam(), dtype);
    communicator().all_reduce(sum, ReduceOp::kSum);
    expect_bits(sum, rank_order_sum([&](int r) { return half_input(r, GetParam(), dtype); }),
                label(dtype, GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, AllReduce, testing::Values(1, 7, 16 * 1024, 16 * 1024 + 1, 300007));

TEST(AllReduceShapes, ZeroDimEmptyAndTransposed) {
  Tensor scalar = torch::full({}, rank() + 1.0, on_device(torch::kDouble));
  communicator().all_reduce(scalar, ReduceOp::kSum);
  EXPECT_EQ(scalar.dim(), 0);
  EXPECT_EQ(scalar.item<double>(), world_size() * (world_size() + 1) / 2.0);
  Tensor empty = torch::empty({0, 3}, on_device(torch::kFloat));
  communicator().all_reduce(empty, ReduceOp::kSum);
  EXPECT_EQ(empty.numel(), 0);
  for (const int64_t side : {5, 150}) {
    const auto input = [&](int r) {
      return pattern(r, side * side, torch::kInt64).view({side, side}).t();
    };
    Tensor base = input(rank()).t().clone();
    Tensor transposed = base.t();
    communicator().all_reduce(transposed, ReduceOp::kSum);
    expect_bits(transposed.contiguous(), rank_order_sum(input).contiguous(), "transposed");
  }
}

TEST(Broadcast, FromEveryRoot) {
  for (int root = 0; root < world_size(); ++root) {
    for (const torch::Dtype dtype : kDtypes) {
      for (const int64_t n : kSizes) {
        Tensor tensor =
            rank() == root ? pattern(root, n, dtype, 11) : torch::ones({n}, on_device(dtype));
        communicator().broadcast(tensor, root);
        expect_bits(tensor, pattern(root, n, dtype, 11),
                    c10::str("root ", root, ": ", label(dtype, n)));
      }
    }
  }
}

TEST(Broadcast, TransposedAndZeroDim) {
  for (int root = 0; root < world_size(); ++root) {
    Tensor base = pattern(rank(), 35, torch::kFloat).view({5, 7}).clone();
    Tensor transposed = base.t();
    communicator().broadcast(transposed, root);
    expect_bits(base, pattern(root, 35, torch::kFloat).view({5, 7}), "transposed");
    Tensor scalar = torch::full({}, static_cast<int64_t>(rank() + 40), on_device(torch::kInt64));
    communicator().broadcast(scalar, root);
    EXPECT_EQ(scalar.item<int64_t>(), root + 40);
  }
}

// What a rank wrote before a barrier, every rank sees after it.
TEST(Barrier, OrdersWhatRanksDo) {
  std::string directory;
  if (rank() == 0) {
    std::string name = testing::TempDir() + "/barrier_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory = name;
  }
  directory = communicator().all_gather_bytes(directory)[0];
  for (int round = 0; round < 20; ++round) {
    const auto file = [&](int r) {
      return directory + "/" + std::to_string(round) + "." + std::to_string(r);
    };
    std::ofstream(file(rank())) << "here";
    communicator().barrier();
    for (int r = 0; r < world_size(); ++r)
      EXPECT_TRUE(std::filesystem::exists(file(r))) << "round " << round << " rank " << r;
  }
  communicator().barrier();
  if (rank() == 0) std::filesystem::remove_all(directory);
}

TEST(Header, EverySizeDifferentOnEachRank) {
  const size_t sizes[] = {0, 1, 7, comm::Communicator::kMaxHeaderBytes};
  for (size_t shift = 0; shift < 4; ++shift) {
    const auto message = [&](int r) {
      std::string text(sizes[(static_cast<size_t>(r) + shift) % 4], static_cast<char>('a' + r));
      if (text.size() > 3) text[2] = '\0';
      return text;
    };
    const auto all = communicator().exchange_header(message(rank()));
    ASSERT_EQ(all.size(), static_cast<size_t>(world_size()));
    for (int r = 0; r < world_size(); ++r)
      EXPECT_EQ(all[static_cast<size_t>(r)], message(r)) << "rank " << r;
  }
}

TEST(Header, TooLongIsRefusedBeforeAnythingIsSent) {
  EXPECT_THROW(
      communicator().exchange_header(std::string(comm::Communicator::kMaxHeaderBytes + 1, 'x')),
      c10::Error);
  EXPECT_EQ(communicator().exchange_header("still in step").size(),
            static_cast<size_t>(world_size()));
}

TEST(Bytes, UnevenAndEmpty) {
  const auto check = [](const std::function<std::string(int)>& message) {
    const auto all = communicator().all_gather_bytes(message(rank()));
    ASSERT_EQ(all.size(), static_cast<size_t>(world_size()));
    for (int r = 0; r < world_size(); ++r)
      EXPECT_EQ(all[static_cast<size_t>(r)] == message(r), true) << "rank " << r;
  };
  check([](int) { return std::string(); });
  check([](int r) { return std::string(static_cast<size_t>(r) * 1000, static_cast<char>(r)); });
  check([](int r) { return r == world_size() - 1 ? std::string("only the last") : std::string(); });
  check([](int r) { return r == 0 ? std::string(3'000'001, '\xff') : std::string("x"); });
}

// Windows and counters are used again and again; an operation must not see the one before it.
TEST(Sequence, ManyOperationsOfChangingSizes) {
  for (int64_t step = 0; step < 120; ++step) {
    const int64_t n = (step * 7919) % 4001;
    Tensor gathered = torch::empty({world_size() * n}, on_device(torch::kInt64));
    communicator().all_gather(gathered, pattern(rank(), n, torch::kInt64, step));
    expect_bits(gathered, concatenated([&](int r) { return pattern(r, n, torch::kInt64, step); }),
                c10::str("gather ", step));
    Tensor sum = torch::empty({n}, on_device(torch::kInt64));
    communicator().reduce_scatter(sum, gathered.clone());
    expect_bits(sum, pattern(rank(), n, torch::kInt64, step) * world_size(),
                c10::str("scatter ", step));
    const int root = static_cast<int>(step % world_size());
    Tensor sent = pattern(rank(), n, torch::kShort, step);
    communicator().broadcast(sent, root);
    expect_bits(sent, pattern(root, n, torch::kShort, step), c10::str("broadcast ", step));
    EXPECT_EQ(communicator().exchange_header(std::to_string(step)).back(), std::to_string(step));
  }
}

// Evaluation may run in inference mode; what is kept between calls must not become useless by that.
TEST(Modes, InferenceModeAndGradMode) {
  for (int round = 0; round < 2; ++round) {
    {
      const c10::InferenceMode inference;
      Tensor sum = noise(rank(), 20000, torch::kFloat);
      communicator().all_reduce(sum, ReduceOp::kSum);
      expect_sum(sum, rank_order_sum([](int r) { return noise(r, 20000, torch::kFloat); }),
                 "inference");
    }
    Tensor leaf = noise(rank(), 20000, torch::kFloat).requires_grad_();
    Tensor out = torch::empty({20000 * world_size()}, on_device(torch::kFloat));
    communicator().all_gather(out, leaf);
    EXPECT_FALSE(out.requires_grad());
    expect_bits(out, concatenated([](int r) { return noise(r, 20000, torch::kFloat); }), "a leaf");
    Tensor sum = noise(rank(), 20000, torch::kFloat);
    communicator().all_reduce(sum, ReduceOp::kSum);
    expect_sum(sum, rank_order_sum([](int r) { return noise(r, 20000, torch::kFloat); }),
               "grad mode");
  }
}

}  // namespace
}  // namespace tessera::test
