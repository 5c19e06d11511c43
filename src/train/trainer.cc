#include "trainer.h"

#include <c10/util/StringUtil.h>
#include <torch/nn/utils/clip_grad.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>

#include "benchmark.h"
#include "failure.h"
#include "final_parameters.h"
#include "memory_report.h"
#include "optimizers.h"
#include "stop_signal.h"
#include "targets.h"

namespace tessera::train {
namespace {

std::string last_component(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

double tokens_per_second(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

}  // namespace

Trainer::Trainer(const TrainOptions& options, const Runtime& runtime)
    : options_(options), runtime_(runtime), resident_at_start_(resident_bytes()) {
  if (runtime_.rank() == 0) progress_.emplace(STDOUT_FILENO, options_.log_every);
  agree(runtime_, [&] {
    if (options_.plain && runtime_.world_size() > 1) {
      throw UsageError(c10::str("--plain trains on one rank, not on ", runtime_.world_size()));
    }
    task_ = make_task(options_, runtime_.device());
    order_.emplace(options_.seed, task_->sample_count());
    // Rank 0 writes for all, and another rank may see the folder only once it is made.
    if (runtime_.rank() != 0) return;
    if (!options_.checkpoint_dir.empty()) require_checkpoint_dir(options_.checkpoint_dir);
    if (!options_.save_final.empty()) require_final_target(options_.save_final, options_.data);
  });
  batch_ = options_.batch_per_rank > 0 ? options_.batch_per_rank * runtime_.world_size()
                                       : options_.batch;
  part_ = batch_part(batch_, runtime_.rank(), runtime_.world_size());
  if (!options_.plain) together([&] { shard(); });
  parameters_ = task_->module().parameters();
  optimizer_ = make_optimizer(options_.optimizer, options_.lr, parameters_);
  if (!options_.checkpoint_dir.empty()) resume();
  agree(runtime_, [&] {
    if (runtime_.rank() == 0 && !options_.metrics.empty())
      metrics_.emplace(options_.metrics, step_);
  });
}

void Trainer::shard() {
  sharded_.emplace(fully_shard(task_->module(), runtime_.mesh(), task_->fsdp_options()));
  // Equal parts need no weights, and without them one rank's gradients stay what they are.
  if (batch_ % runtime_.world_size() != 0) {
    sharded_->set_gradient_weight(static_cast<double>(part_.size()));
  }
}

void Trainer::resume() {
  RunCheckpoints::Identity identity = task_->identity();
  identity.emplace_back("seed", static_cast<int64_t>(options_.seed));
  identity.emplace_back("optimizer", std::string(to_string(options_.optimizer)));
  checkpoints_.emplace(options_, runtime_, *sharded_, *optimizer_, std::move(identity), position_);
  if (!options_.resume) return;
  saved_step_ = checkpoints_->resume();
  if (!saved_step_) return;
  step_ = *saved_step_;
  const LoadReport& report = checkpoints_->load_report();
  saved_path_ = report.path;
  say(c10::str("resumed at step ", step_, " from ", report.path, " (saved on ",
               report.stored_world_size, report.stored_world_size == 1 ? " rank, " : " ranks, ",
               "now ", runtime_.world_size(), ")"));
  for (const std::string& note : report.notes) say("  " + note);
  if (options_.lr_given) set_learning_rate(*optimizer_, options_.lr);
}

int Trainer::run() {
  const int64_t first_step = step_;
  stop_signal::install();
  bool stopped = false;
  while (step_ < options_.steps && !stopped) {
    step();
    if (save_is_due()) save();
    stopped = runtime_.any(stop_signal::requested());
  }
  const bool interrupted = step_ < options_.steps;
  finish_save();
  if (checkpoints_ && saved_step_ != step_ && step_ > first_step) {
    save();
    finish_save();
  }
  if (!interrupted && !options_.save_final.empty()) save_final_parameters();
  if (progress_) progress_->finish();
  summarize(first_step, interrupted);
  if (options_.bench) report_benchmark();
  if (!interrupted) return output_lost() ? kFailed : kComplete;
  return checkpoints_ ? kInterruptedSaved : kInterruptedUnsaved;
}

bool Trainer::output_lost() const {
  if (!progress_ || !progress_->output_lost()) return false;
  std::fputs(
      "tessera-train: all steps are done, but some of the output could not be written to standard "
      "output\n",
      stderr);
  return true;
}

void Trainer::step() {
  const auto start = std::chrono::steady_clock::now();
  // A rank without samples computes one all the same, with weight 0: every rank takes part in the
  // exchanges of forward and backward.
  const int64_t begin = position_ + part_.begin;
  const int64_t count = std::max<int64_t>(part_.size(), 1);
  const torch::Tensor loss = task_->mean_loss(order_->slice(begin, begin + count));
  loss.backward();
  std::optional<double> grad_norm;
  if (options_.clip > 0) grad_norm = clip_gradients();
  optimizer_->step();
  optimizer_->zero_grad();
  const double mean = runtime_.sum(loss.item<double>() * static_cast<double>(part_.size())) /
                      static_cast<double>(batch_);
  ++step_;
  position_ += batch_;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  record(mean, grad_norm, elapsed.count());
}

double Trainer::clip_gradients() {
  if (sharded_) return sharded_->clip_grad_norm(options_.clip);
  return torch::nn::utils::clip_grad_norm_(parameters_, options_.clip);
}

void Trainer::record(double loss, std::optional<double> grad_norm, double seconds) {
  if (!first_loss_) first_loss_ = loss;
  last_loss_ = loss;
  step_seconds_.push_back(seconds);
  if (!std::isfinite(loss) && !warned_not_finite_) {
    say(c10::str("warning: the loss of step ", step_,
                 " is not finite; try a smaller --lr or --clip"));
    warned_not_finite_ = true;
  }
  const double rate = tokens_per_second(batch_ * task_->tokens_per_sample(), seconds);
  if (metrics_) {
    append_metrics({step_, loss, rate, seconds, grad_norm, order_->epoch(position_), position_});
  }
  if (progress_) {
    progress_->update({step_, options_.steps, loss, rate, seconds, save_state()});
  }
}

// The run is worth more than its metrics.
void Trainer::append_metrics(const StepMetrics& metrics) {
  try {
    metrics_->append(metrics);
  } catch (const IoError& error) {
    metrics_.reset();
    say(c10::str("warning: ", error.what(), "; the run goes on without metrics from step ", step_));
  }
}

bool Trainer::save_is_due() const {
  return checkpoints_ && options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0;
}

void Trainer::save() {
  if (options_.async_save) {
    finish_save();
    running_save_ = checkpoints_->save_async(step_);
  } else {
    saved_path_ = checkpoints_->save(step_);
  }
  saved_step_ = step_;
}

void Trainer::finish_save() {
  if (!running_save_) return;
  checkpoints_->wait();
  saved_path_ = running_save_->committed().get();
  running_save_.reset();
}

std::string Trainer::save_state() const {
  if (!running_save_) return saved_path_.empty() ? "" : "saved " + last_component(saved_path_);
  const SaveProgress progress = running_save_->progress();
  const uint64_t percent = progress.total > 0 ? 100 * progress.written / progress.total : 100;
  return c10::str("saving step ", *saved_step_, " (", std::min<uint64_t>(percent, 100), " %)");
}

void Trainer::save_final_parameters() {
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
  if (!sharded_) {
    for (const auto& parameter : task_->module().named_parameters()) {
      tensors.emplace_back(parameter.key(), parameter.value());
    }
    write_parameters(options_.save_final, std::move(tensors));
    return;
  }
  const Gathered whole = sharded_->gather();
  agree(runtime_, [&] {
    if (runtime_.rank() != 0) return;
    for (const ShardedParameter& parameter : sharded_->parameters()) {
      tensors.emplace_back(parameter.fqn, whole[parameter.fqn]);
    }
    write_parameters(options_.save_final, std::move(tensors));
  });
}

void Trainer::say(const std::string& line) {
  if (progress_) progress_->message(line);
}

void Trainer::summarize(int64_t first_step, bool interrupted) {
  if (step_ == first_step) {
    say(c10::str("nothing to do: ", step_, " steps are complete (--steps ", options_.steps, ")"));
    return;
  }
  const double seconds = std::accumulate(step_seconds_.begin(), step_seconds_.end(), 0.0);
  const int64_t tokens = (step_ - first_step) * batch_ * task_->tokens_per_sample();
  say(c10::str(interrupted ? "interrupted after" : "trained", " steps ", first_step + 1, " to ",
               step_, ": loss ", *first_loss_, " -> ", last_loss_, ", ",
               std::llround(tokens_per_second(tokens, seconds)), " tokens/s"));
  if (checkpoints_) say("checkpoint: " + saved_path_);
  if (interrupted && !checkpoints_) say("nothing was saved: no --checkpoint-dir");
}

void Trainer::report_benchmark() {
  BenchmarkInput input;
  input.step_seconds = step_seconds_;
  input.tokens_per_step = batch_ * task_->tokens_per_sample();
  input.memory.world_size = runtime_.world_size();
  input.memory.sharded = sharded_.has_value();
  input.memory.shared_parameters = runtime_.backend_name() == "shm";
  input.memory.element_bytes = options_.double_precision ? 8 : 4;
  input.memory.state_tensors = state_tensors_per_parameter(options_.optimizer);
  input.resident_at_start = resident_at_start_;
  if (sharded_) {
    input.memory.unit_numel = unit_sizes(*sharded_);
  } else {
    for (const torch::Tensor& parameter : parameters_) {
      input.memory.unit_numel.push_back(parameter.numel());
    }
  }
  for (const std::string& line : benchmark_lines(input, runtime_)) say(line);
}

}  // namespace tessera::train
