#include "comm/communicator.h"

#include <torch/torch.h>

#include <cstring>

#include "comm/sum_dtype.h"
#include "tessera/error.h"

namespace tessera::comm {
namespace {

torch::Tensor byte_tensor(std::string_view bytes, int64_t size) {
  torch::Tensor out = torch::zeros({size}, torch::kUInt8);
  if (!bytes.empty()) std::memcpy(out.data_ptr(), bytes.data(), bytes.size());
  return out;
}

// Small tensors travel whole; the sum then runs in rank order on every rank.
constexpr int64_t kSmallReduce = 16 * 1024;

void reduce_rows(torch::Tensor& out, const torch::Tensor& rows, ReduceOp op) {
  out.copy_(rows[0]);
  for (int64_t rank = 1; rank < rows.size(0); ++rank) {
    switch (op) {
      case ReduceOp::kSum: out.add_(rows[rank]); break;
      case ReduceOp::kMax: out.copy_(torch::maximum(out, rows[rank].to(out.scalar_type()))); break;
      case ReduceOp::kMin: out.copy_(torch::minimum(out, rows[rank].to(out.scalar_type()))); break;
    }
  }
}

}  // namespace

std::vector<std::string> Communicator::exchange_header(std::string_view header) {
  TORCH_CHECK(header.size() <= kMaxHeaderBytes, "control message of ", header.size(), " bytes");
  constexpr int64_t kFrame = static_cast<int64_t>(kMaxHeaderBytes) + 8;
  torch::Tensor mine = byte_tensor({}, kFrame);
  const uint64_t size = header.size();
  auto* data = mine.data_ptr<uint8_t>();
  std::memcpy(data, &size, 8);
  if (size > 0) std::memcpy(data + 8, header.data(), size);
  torch::Tensor all = torch::empty({world_size() * kFrame}, torch::kUInt8);
  all_gather(all, mine);
  std::vector<std::string> out;
  for (int r = 0; r < world_size(); ++r) {
    const uint8_t* frame = all.data_ptr<uint8_t>() + r * kFrame;
    uint64_t length = 0;
    std::memcpy(&length, frame, 8);
    if (length > kMaxHeaderBytes) throw CommError("rank " + std::to_string(r) + " sent a malformed control message");
    out.emplace_back(reinterpret_cast<const char*>(frame) + 8, length);
  }
  return out;
}

std::vector<std::string> Communicator::all_gather_bytes(std::string_view bytes) {
  const int64_t mine = static_cast<int64_t>(bytes.size());
  torch::Tensor sizes = torch::empty({world_size()}, torch::kInt64);
  all_gather(sizes, torch::full({1}, mine, torch::kInt64));
  const int64_t longest = sizes.max().item<int64_t>();
  std::vector<std::string> out(static_cast<size_t>(world_size()));
  if (longest == 0) return out;
  torch::Tensor all = torch::empty({world_size() * longest}, torch::kUInt8);
  all_gather(all, byte_tensor(bytes, longest));
  for (int r = 0; r < world_size(); ++r) {
    out[static_cast<size_t>(r)].assign(
        reinterpret_cast<const char*>(all.data_ptr<uint8_t>()) + r * longest,
        static_cast<size_t>(sizes[r].item<int64_t>()));
  }
  return out;
}

void Communicator::all_reduce(torch::Tensor tensor, ReduceOp op) {
  if (world_size() == 1) return;
  torch::NoGradGuard no_grad;
  torch::Tensor flat = tensor.contiguous().reshape({-1});
  const int64_t n = flat.numel();
  if (n == 0) return;
  torch::Tensor result;
  if (n <= kSmallReduce || op != ReduceOp::kSum) {
    torch::Tensor rows = torch::empty({world_size() * n}, flat.options());
    all_gather(rows, flat);
    result = torch::empty(flat.sizes(), flat.options().dtype(sum_dtype(flat.scalar_type())));
    reduce_rows(result, rows.view({world_size(), n}), op);
  } else {
    const int64_t segment = (n + world_size() - 1) / world_size();
    torch::Tensor padded = torch::zeros({segment * world_size()}, flat.options());
    padded.narrow(0, 0, n).copy_(flat);
    torch::Tensor mine = torch::empty({segment}, flat.options());
    reduce_scatter(mine, padded);
    all_gather(padded, mine);
    result = padded.narrow(0, 0, n);
  }
  tensor.copy_(result.view(tensor.sizes()));
}

void Communicator::barrier() { exchange_header({}); }

}  // namespace tessera::comm
