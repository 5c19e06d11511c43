// main() of every multi-rank test: connects first, so that all cases share one Runtime, and fails
// where no case ran.
#include <gtest/gtest.h>

#include <memory>

#include "support/multirank.h"
#include "tessera/error.h"

namespace tessera::test {
namespace {
std::unique_ptr<Runtime> instance;
}
const Runtime& runtime() { return *instance; }
}  // namespace tessera::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  torch::set_num_threads(1);
  int result = 1;
  try {
    tessera::test::instance = std::make_unique<tessera::Runtime>(tessera::Runtime::from_environment());
    result = RUN_ALL_TESTS();
    if (testing::UnitTest::GetInstance()->test_to_run_count() == 0) {
      std::fprintf(stderr, "no test ran\n");
      result = 1;
    }
    if (result == 0) tessera::test::instance->barrier();
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  tessera::test::instance.reset();
  return result;
}
