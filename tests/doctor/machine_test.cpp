// What /proc and /sys say, from trees of files made here.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "doctor/checks.h"

namespace fathom::doctor {
namespace {

namespace fs = std::filesystem;

class Root : public ::testing::Test {
 protected:
  Root() {
    std::string path = (fs::temp_directory_path() / "fathom_root_XXXXXX").string();
    root_ = ::mkdtemp(path.data());
  }
  ~Root() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void put_gpu(const std::string& address, const std::string& driver) {
    const std::string folder = "sys/bus/pci/devices/" + address + "/";
    put(folder + "vendor", "0x10de\n");
    put(folder + "class", "0x030200\n");
    put(folder + "device", "0x2335\n");
    put(folder + "current_link_speed", "16.0 GT/s PCIe\n");
    put(folder + "max_link_speed", "32.0 GT/s PCIe\n");
    put(folder + "current_link_width", "8\n");
    put(folder + "max_link_width", "16\n");
    put(folder + "numa_node", "1\n");
    if (!driver.empty()) fs::create_symlink("/sys/bus/pci/drivers/" + driver, root_ / (folder + "driver"));
  }

  const Check* gpu_line(const Machine& m) {
    NvmlReport none;
    none.why_not = "there is none";
    list_ = gpu_checks(none, m);
    EXPECT_EQ(list_.size(), 1u);
    return list_.data();
  }

  fs::path root_;
  std::vector<Check> list_;
};

TEST_F(Root, EmptyTreeIsReadWithoutAnError) {
  const Machine m = read_machine(root_);
  EXPECT_EQ(m.memory, 0u);
  EXPECT_TRUE(m.gpus.empty());
  EXPECT_FALSE(m.instruction_set.empty());
  EXPECT_FALSE(machine_checks(m).empty());
}

TEST_F(Root, MemoryNodesAndLimitsAreRead) {
  put("proc/meminfo", "MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\nSwapTotal: 0 kB\n");
  put("proc/cpuinfo", "processor\t: 0\nmodel name\t: A Processor\n\nprocessor\t: 1\nmodel name\t: A Processor\n");
  put("sys/fs/cgroup/memory.max", "1073741824\n");
  put("sys/fs/cgroup/memory.current", "973741824\n");
  put("sys/fs/cgroup/cpu.max", "50000 100000\n");
  put("sys/devices/system/node/node0/cpulist", "0-1\n");
  put("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       24000000 kB\n");
  put("sys/devices/system/node/node1/cpulist", "2-3\n");
  put("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  const Machine m = read_machine(root_);
  EXPECT_EQ(m.memory, 24000000ull * 1024);
  EXPECT_EQ(m.processor, "A Processor");
  EXPECT_EQ(m.processors, 2);
  EXPECT_EQ(m.memory_limit, 1073741824u);
  EXPECT_DOUBLE_EQ(m.processor_limit, 0.5);
  ASSERT_EQ(m.nodes.size(), 2u);
  EXPECT_EQ(m.nodes[0].memory, 24000000ull * 1024);
  EXPECT_EQ(m.huge_pages, "never");
  EXPECT_TRUE(m.container);
  size_t warnings = 0;
  for (const Check& c : machine_checks(m)) {
    if (c.level == Level::warning) ++warnings;
    if (c.level != Level::ok) {
      EXPECT_FALSE(c.cause.empty()) << c.found;
      EXPECT_FALSE(c.remedy.empty()) << c.found;
    }
  }
  EXPECT_GE(warnings, 2u);  // the quota and the memory of the container
}

TEST_F(Root, UnlimitedContainerIsNoLimit) {
  put("proc/meminfo", "MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\n");
  put("sys/fs/cgroup/memory.max", "max\n");
  put("sys/fs/cgroup/cpu.max", "max 100000\n");
  const Machine m = read_machine(root_);
  EXPECT_EQ(m.memory_limit, 0u);
  EXPECT_EQ(m.processor_limit, 0);
}

TEST_F(Root, GpuWithoutDriverIsSeenOnTheBus) {
  put_gpu("0000:41:00.0", "");
  put_gpu("0000:81:00.0", "vfio-pci");
  const Machine m = read_machine(root_);
  ASSERT_EQ(m.gpus.size(), 2u);
  EXPECT_EQ(m.gpus[0].width, 8);
  EXPECT_EQ(m.gpus[0].width_max, 16);
  EXPECT_DOUBLE_EQ(m.gpus[0].speed, 16);
  EXPECT_EQ(m.gpus[1].driver, "vfio-pci");
  const Check* c = gpu_line(m);
  EXPECT_EQ(c->level, Level::bad);
  EXPECT_NE(c->cause.find("0000:81:00.0 (driver vfio-pci)"), std::string::npos) << c->cause;
}

TEST_F(Root, ContainerWithoutItsGpusIsToldHowToGetThem) {
  put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release\n");
  put(".dockerenv", "");
  const Machine m = read_machine(root_);
  EXPECT_EQ(m.driver, "580.65.06");
  const Check* c = gpu_line(m);
  EXPECT_EQ(c->level, Level::bad);
  EXPECT_NE(c->cause.find("without GPUs"), std::string::npos) << c->cause;
  EXPECT_NE(c->remedy.find("--gpus all"), std::string::npos);
}

TEST_F(Root, DeviceWithoutTheDriversLibraryIsToldSo) {
  put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu\n");
  put("dev/nvidia0", "");
  put("dev/nvidiactl", "");
  put("dev/nvidia-caps", "");
  const Machine m = read_machine(root_);
  EXPECT_EQ(m.device_files.size(), 2u);
  EXPECT_NE(gpu_line(m)->remedy.find("NVIDIA_DRIVER_CAPABILITIES"), std::string::npos);
}

TEST_F(Root, LargestWeightsAreReadUpToTheLimit) {
  put("model-1.safetensors", std::string(10'000, 'a'));
  put("model-2.safetensors", std::string(3'000'000, 'b'));
  put("other.bin", std::string(9'000'000, 'c'));
  const DiskRate whole = measure_disk(root_);
  EXPECT_EQ(whole.why_not, "");
  EXPECT_EQ(whole.bytes, 3'000'000);
  EXPECT_GT(whole.rate(), 0);
  EXPECT_NE(whole.file.find("model-2"), std::string::npos);
  EXPECT_NE(measure_disk(root_ / "nothing").why_not.find("no *.safetensors"), std::string::npos);
}

}  // namespace
}  // namespace fathom::doctor
