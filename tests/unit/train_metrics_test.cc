#include "train/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <tessera/error.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class MetricsTest : public testing::Test {
 protected:
  MetricsTest() {
    std::string pattern = (fs::temp_directory_path() / "tessera-metrics-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    path_ = (root_ / "m.jsonl").string();
  }
  ~MetricsTest() override { fs::remove_all(root_); }

  void write(const std::string& content) { std::ofstream(path_, std::ios::binary) << content; }
  std::string content() const {
    std::ostringstream text;
    text << std::ifstream(path_, std::ios::binary).rdbuf();
    return text.str();
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> result;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      result.push_back(nlohmann::json::parse(line).at("step").get<int64_t>());
    }
    return result;
  }
  void write_steps(int64_t last) {
    MetricsFile file(path_, 0);
    for (int64_t step = 1; step <= last; ++step) file.append(at(step));
  }
  static StepMetrics at(int64_t step) {
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = 1.0 / static_cast<double>(step);
    return metrics;
  }

  fs::path root_;
  std::string path_;
};

TEST_F(MetricsTest, LineHoldsEveryFieldExactly) {
  StepMetrics metrics{3, 0.1, 1234.5, 0.25, 2.0 / 3.0, 1, 24};
  const auto line = nlohmann::json::parse(to_json_line(metrics));
  EXPECT_EQ(line["step"], 3);
  EXPECT_EQ(line["loss"].get<double>(), 0.1);
  EXPECT_EQ(line["tokens_per_second"], 1234.5);
  EXPECT_EQ(line["seconds"], 0.25);
  EXPECT_EQ(line["grad_norm"].get<double>(), 2.0 / 3.0);
  EXPECT_EQ(line["epoch"], 1);
  EXPECT_EQ(line["position"], 24);
  metrics.grad_norm.reset();
  metrics.loss = std::nan("");
  const auto other = nlohmann::json::parse(to_json_line(metrics));
  EXPECT_TRUE(other["grad_norm"].is_null());
  EXPECT_TRUE(other["loss"].is_null());
}

TEST_F(MetricsTest, ResumedRunDropsLaterStepsAndContinues) {
  write_steps(25);
  MetricsFile file(path_, 20);
  EXPECT_EQ(steps().size(), 20u);
  file.append(at(21));
  EXPECT_EQ(steps().back(), 21);
  EXPECT_EQ(steps().size(), 21u);
}

TEST_F(MetricsTest, FreshRunStartsAnew) {
  write_steps(5);
  write_steps(2);
  EXPECT_THAT(steps(), ElementsAre(1, 2));
}

TEST_F(MetricsTest, NothingIsRewrittenWhereNothingIsDropped) {
  write_steps(5);
  const auto before = fs::last_write_time(path_);
  const std::string bytes = content();
  { MetricsFile file(path_, 5); }
  EXPECT_EQ(fs::last_write_time(path_), before);
  EXPECT_EQ(content(), bytes);
}

TEST_F(MetricsTest, TornLastLineIsDropped) {
  write_steps(3);
  write(content() + "{\"step\":4,\"lo");
  MetricsFile file(path_, 10);
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3));
}

TEST_F(MetricsTest, OtherFileIsRefusedAndKept) {
  write("{\"step\":1}\nshopping list\n");
  EXPECT_THAT([&] { MetricsFile(path_, 10); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr(path_), HasSubstr("line 2"))));
  EXPECT_EQ(content(), "{\"step\":1}\nshopping list\n");
  write("notes without a newline");
  EXPECT_THAT([&] { MetricsFile(path_, 0); }, ThrowsMessage<UsageError>(HasSubstr(path_)));
  EXPECT_EQ(content(), "notes without a newline");
}

TEST_F(MetricsTest, MissingFolderNamesThePath) {
  const std::string path = (root_ / "no" / "m.jsonl").string();
  EXPECT_THAT([&] { MetricsFile(path, 0); }, ThrowsMessage<IoError>(HasSubstr(path)));
}

TEST_F(MetricsTest, FullDiskIsAnError) {
  MetricsFile file("/dev/full", 0);
  EXPECT_THAT([&] { file.append(at(1)); },
              ThrowsMessage<IoError>(AllOf(HasSubstr("/dev/full"), HasSubstr("No space left"))));
}

TEST_F(MetricsTest, FolderOrNamedPipeInPlaceOfTheFileIsRefused) {
  EXPECT_THAT([&] { MetricsFile(root_.string(), 0); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr(root_.string()), HasSubstr("directory"))));
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT([&] { MetricsFile(path_, 0); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr(path_), HasSubstr("named pipe"))));
}

}  // namespace
}  // namespace tessera::train
