// What fathom doctor makes of a driver's answers, with a library of scripted values in place of the driver's.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "doctor/checks.h"

namespace fathom::doctor {
namespace {

const char* const healthy = R"(driver 580.65.06
version 13.580.65.06
cuda 13000
count 1
gpu0.name NVIDIA H200
gpu0.uuid GPU-1
gpu0.bus 00000000:01:00.0
gpu0.sm 90
gpu0.memory 150754820096
gpu0.sm_clock 1980
gpu0.sm_clock_max 1980
gpu0.memory_clock 3201
gpu0.memory_clock_max 3201
gpu0.reasons 0
gpu0.power 350000
gpu0.limit 700000
gpu0.default_limit 700000
gpu0.temperature 40
gpu0.slowdown 92
gpu0.generation 5
gpu0.generation_max 5
gpu0.width 16
gpu0.width_max 16
gpu0.replays 0
gpu0.pstate 0
gpu0.persistence 1
gpu0.compute_mode 0
gpu0.ecc 1
gpu0.ecc_errors 0
gpu0.mig 0
gpu0.nvlinks 18
gpu0.busy 0
)";

class NvmlTest : public ::testing::Test {
 protected:
  NvmlTest() : script_(std::filesystem::temp_directory_path() / ("fake_nvml_" + std::to_string(::getpid()))) {}
  ~NvmlTest() override { std::filesystem::remove(script_); }

  /// The healthy script with lines that replace or add to it: the last one of a key counts.
  NvmlReport read(const std::string& changes, const char* library = FAKE_NVML) {
    std::ofstream(script_) << healthy << changes;
    ::setenv("FAKE_NVML_SCRIPT", script_.c_str(), 1);
    return read_nvml(library);
  }

  std::vector<Check> checks(const std::string& changes, const Machine& machine = {}) {
    return gpu_checks(read(changes), machine);
  }

 private:
  std::filesystem::path script_;
};

const Check* worst(const std::vector<Check>& checks) {
  return &*std::max_element(checks.begin(), checks.end(),
                            [](const Check& a, const Check& b) { return a.level < b.level; });
}

bool all_explained(const std::vector<Check>& checks) {
  return std::all_of(checks.begin(), checks.end(),
                     [](const Check& c) { return c.level == Level::ok || (!c.cause.empty() && !c.remedy.empty()); });
}

TEST_F(NvmlTest, HealthyGpuIsReadInFullAndHasNothingToSay) {
  const NvmlReport r = read("");
  ASSERT_TRUE(r.usable()) << r.why_not;
  EXPECT_EQ(r.driver, "580.65.06");
  EXPECT_EQ(r.cuda, 13000);
  ASSERT_EQ(r.gpus.size(), 1u);
  const GpuState& g = r.gpus[0];
  EXPECT_EQ(g.name, "NVIDIA H200");
  EXPECT_EQ(g.bus_id, "00000000:01:00.0");
  EXPECT_EQ(g.compute_capability, 90);
  EXPECT_EQ(g.memory_total, 150754820096u);
  EXPECT_DOUBLE_EQ(g.power.value(), 350);
  EXPECT_EQ(g.link_width, 16);
  EXPECT_EQ(g.nvlinks, 18);
  EXPECT_EQ(g.mig, false);
  EXPECT_TRUE(g.unread.empty()) << g.unread.front();
  for (const Check& c : gpu_checks(r, {})) EXPECT_EQ(c.level, Level::ok) << c.found;
}

TEST_F(NvmlTest, NoLibraryIsOneReasonAndNoError) {
  const NvmlReport r = read_nvml("/nowhere/libnvidia-ml.so.1");
  EXPECT_FALSE(r.usable());
  EXPECT_NE(r.why_not.find("/nowhere/libnvidia-ml.so.1"), std::string::npos) << r.why_not;
  const auto checks = gpu_checks(r, {});
  ASSERT_EQ(checks.size(), 1u);
  EXPECT_EQ(checks[0].level, Level::note);  // a machine without a GPU is not broken
}

TEST_F(NvmlTest, LibraryThatIsNoNvmlIsRefused) {
  const NvmlReport r = read_nvml("libm.so.6");
  EXPECT_NE(r.why_not.find("nvmlInit"), std::string::npos) << r.why_not;
}

TEST_F(NvmlTest, DriverThatDoesNotMatchItsLibraryIsNamed) {
  const NvmlReport r = read("init 18\n");
  EXPECT_FALSE(r.usable());
  EXPECT_NE(r.why_not.find("version mismatch"), std::string::npos) << r.why_not;
}

TEST_F(NvmlTest, OldLibraryLosesOnlyWhatItLacks) {
  const NvmlReport r = read("gpu0.reasons 0x40\n", FAKE_NVML_OLD);
  ASSERT_TRUE(r.usable()) << r.why_not;
  ASSERT_EQ(r.gpus.size(), 1u);
  EXPECT_EQ(r.gpus[0].name, "NVIDIA H200");
  EXPECT_EQ(r.gpus[0].clock_reasons, 0x40u);  // by the function's older name
  EXPECT_FALSE(r.gpus[0].link_width.has_value());
  EXPECT_NE(std::find(r.gpus[0].unread.begin(), r.gpus[0].unread.end(),
                      "PCIe width: the driver's library has no such function"),
            r.gpus[0].unread.end());
  const auto checks = gpu_checks(r, {});
  EXPECT_EQ(worst(checks)->level, Level::bad);
  EXPECT_TRUE(all_explained(checks));
}

TEST_F(NvmlTest, ErrorCodesOfSingleValuesLeaveTheRest) {
  const NvmlReport r = read("gpu0.power error 4\ngpu0.ecc error 3\ngpu0.temperature error 999\n");
  ASSERT_EQ(r.gpus.size(), 1u);
  EXPECT_FALSE(r.gpus[0].power.has_value());
  EXPECT_EQ(r.gpus[0].sm_clock, 1980);
  EXPECT_EQ(r.gpus[0].unread.size(), 3u);
  EXPECT_EQ(r.gpus[0].unread[0], "ECC mode: Not Supported");
  EXPECT_TRUE(all_explained(gpu_checks(r, {})));
}

struct Case {
  const char* name;
  const char* changes;
  Level level;
  const char* found;
  const char* cause;
};
class Sick : public NvmlTest, public ::testing::WithParamInterface<Case> {};

TEST_P(Sick, IsFoundWithCauseAndRemedy) {
  const auto list = checks(GetParam().changes);
  const Check* c = worst(list);
  EXPECT_EQ(c->level, GetParam().level) << c->found;
  EXPECT_NE(c->found.find(GetParam().found), std::string::npos) << c->found;
  EXPECT_NE(c->cause.find(GetParam().cause), std::string::npos) << c->cause;
  EXPECT_TRUE(all_explained(list));
}

INSTANTIATE_TEST_SUITE_P(
    Gpus, Sick,
    ::testing::Values(
        Case{"Hot", "gpu0.reasons 0x20\ngpu0.temperature 91\n", Level::bad, "thermal (driver)", "91 degrees C"},
        Case{"PowerBrake", "gpu0.reasons 0x88\ngpu0.sm_clock 495\n", Level::bad, "495 of 1980", "PWRBRK"},
        Case{"HardwareSlowdown", "gpu0.reasons 0x8\n", Level::bad, "hardware slowdown", "slows the clocks down"},
        Case{"PowerCap", "gpu0.reasons 0x4\n", Level::note, "power cap", "power limit"},
        Case{"NarrowLink", "gpu0.width 4\n", Level::warning, "PCIe 5.0 x4 where GPU and slot can PCIe 5.0 x16",
             "lanes"},
        Case{"SlowLink", "gpu0.generation 1\n", Level::warning, "PCIe 1.0 x16 while it works", "did not train"},
        Case{"Mig", "gpu0.mig 1\n", Level::warning, "MIG is on", "divided"},
        Case{"LowLimit", "gpu0.limit 300000\n", Level::note, "300 W, 700 W when new", "lowered"},
        Case{"Prohibited", "gpu0.compute_mode 2\n", Level::bad, "Prohibited", "no program"},
        Case{"EccErrors", "gpu0.ecc_errors 3\n", Level::bad, "3 uncorrected", "failing"},
        Case{"Replays", "gpu0.replays 5000\n", Level::warning, "5000 PCIe packets", "signal"},
        Case{"Occupied", "gpu0.used 90000000000\n", Level::note, "are taken", "other programs"},
        Case{"Old", "gpu0.sm 75\n", Level::bad, "sm_75", "sm_80"},
        Case{"Lost", "count 2\ngpu1.handle 15\n", Level::bad, "GPU 1: GPU is lost", "cannot reach"},
        Case{"None", "count 0\n", Level::bad, "no GPU", "none that works"}),
    [](const auto& info) { return info.param.name; });

TEST_F(NvmlTest, LinkThatSleepsIsNoFault) {
  for (const Check& c : checks("gpu0.generation 1\ngpu0.reasons 0x1\n")) EXPECT_EQ(c.level, Level::ok) << c.found;
}

TEST_F(NvmlTest, SlotNarrowerThanTheGpuIsSeenThroughThePciBus) {
  Machine machine;
  machine.gpus.push_back({"0000:01:00.0", "0x2335", "nvidia", 32, 32, 8, 16, 0});
  const auto list = checks("gpu0.width 8\ngpu0.width_max 8\n", machine);
  EXPECT_EQ(worst(list)->level, Level::warning);
  EXPECT_NE(worst(list)->cause.find("slot"), std::string::npos);
}

std::string two_gpus(const char* peer) {
  std::string out = "count 2\ngpu0.ancestor 50\ngpu0.nvlink_peer 5\ngpu0.peer " + std::string(peer) +
                    "\ngpu1.ancestor 50\ngpu1.nvlink_peer 5\ngpu1.peer 0\n";
  const std::string first = healthy;
  for (size_t at = 0; (at = first.find("gpu0.", at)) != first.npos; ++at)
    out += "gpu1." + first.substr(at + 5, first.find('\n', at) - at - 4);
  return out;
}

TEST_F(NvmlTest, PeerAccessIsToldForEveryPair) {
  const NvmlReport r = read(two_gpus("0"));
  ASSERT_EQ(r.pairs.size(), 2u);
  EXPECT_EQ(r.pairs[0].peer_read, 0);
  EXPECT_EQ(r.pairs[0].nvlink, 5);
  EXPECT_EQ(r.pairs[1].from, 1);
  EXPECT_EQ(ancestor_text(r.pairs[0].ancestor.value()), "across NUMA nodes");
  EXPECT_EQ(worst(gpu_checks(r, {}))->level, Level::note);  // for the nodes alone
}

TEST_F(NvmlTest, MissingPeerAccessIsAWarning) {
  const auto list = checks(two_gpus("4"));
  const Check* c = worst(list);
  EXPECT_EQ(c->level, Level::warning);
  EXPECT_NE(c->found.find("1 of 2 pairs (0 to 1: disabled in the driver)"), std::string::npos) << c->found;
}

TEST_F(NvmlTest, TextsOfTheDriverCannotWriteToTheTerminal) {
  const NvmlReport r = read("gpu0.name \x1b[31mH200" + std::string(200, 'x') + "\n");
  ASSERT_EQ(r.gpus.size(), 1u);
  EXPECT_EQ(r.gpus[0].name.find('\x1b'), std::string::npos);
  EXPECT_LE(r.gpus[0].name.size(), 200u);
}

WorkSamples working(double busy, double watts, uint64_t reasons = 0) {
  WorkSamples s;
  s.name = "NVIDIA H200", s.samples = 20, s.busy = busy, s.power = watts, s.limit = 700, s.reasons = reasons;
  return s;
}

TEST(WorkChecks, BusyGpuWithLowPowerIsLatencyBound) {
  const auto c = work_checks(working(0.99, 250));
  ASSERT_EQ(c.size(), 1u);
  EXPECT_EQ(c[0].level, Level::warning);
  EXPECT_NE(c[0].cause.find("latency-bound"), std::string::npos);
  EXPECT_NE(c[0].cause.find("tensor cores"), std::string::npos);
}

TEST(WorkChecks, BusyGpuNearItsPowerLimitIsFine) {
  EXPECT_EQ(work_checks(working(0.99, 650)).at(0).level, Level::ok);
}

TEST(WorkChecks, LowPowerOfHeldBackClocksIsNotCalledLatency) {
  const auto c = work_checks(working(0.99, 200, clock_power_brake));
  EXPECT_EQ(c.at(0).level, Level::bad);
  EXPECT_EQ(c.at(0).cause.find("latency"), std::string::npos);
}

TEST(WorkChecks, IdleGpuWaitsForTheHost) {
  EXPECT_NE(work_checks(working(0.2, 150)).at(0).cause.find("host"), std::string::npos);
}

TEST(WorkChecks, GpuThatTheServerDoesNotUseIsNoFault) {
  EXPECT_EQ(work_checks(working(0.0, 70)).at(0).level, Level::note);
}

TEST(WorkChecks, UnknownPowerIsNoVerdict) {
  EXPECT_EQ(work_checks(working(0.99, 0)).at(0).level, Level::ok);
}

TEST(ClockReasons, UnknownBitsAreShown) {
  EXPECT_EQ(clock_reasons_text(0x1004), "power cap, unknown (0x1000)");
  EXPECT_EQ(clock_reasons_text(0), "none");
}

}  // namespace
}  // namespace fathom::doctor
