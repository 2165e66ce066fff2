// The files a user may bring: GPU tables, routing histograms, bench results; and the reports.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "plan/report.h"

namespace fathom::plan {
namespace {

class File {
 public:
  explicit File(const std::string& text) {
    std::string name = (std::filesystem::temp_directory_path() / "fathom-plan-XXXXXX").string();
    const int descriptor = ::mkstemp(name.data());
    if (descriptor < 0) throw std::runtime_error("mkstemp");
    ::close(descriptor);
    path_ = name;
    std::ofstream(path_) << text;
  }
  ~File() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

template <typename F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string gpu_text(const std::string& name, const std::string& bandwidth) {
  return R"({"gpus": [{"name": ")" + name + R"(", "compute_capability": 90, "sms": 10, "memory": 1000, "bandwidth": )" +
         bandwidth + R"(, "bf16": 1, "fp8": 2, "fp4": 0, "link": {"name": "l", "gbs": 1, "allreduce_us": 1}}]})";
}

TEST(GpuTable, FindsNamesAndAliasesInAnySpelling) {
  const GpuTable table;
  EXPECT_EQ(table.find("rtx-pro-6000").name, "RTX PRO 6000");
  EXPECT_EQ(table.find("gb10").name, "DGX Spark");
  const std::string error = error_of([&] { table.find("H900"); });
  EXPECT_NE(error.find("H200"), std::string::npos) << error;
}

TEST(GpuTable, AFileAddsGpusAndReplacesThoseOfTheSameName) {
  GpuTable table;
  const size_t before = table.all().size();
  table.add_file(File(gpu_text("Mine", "123")).path());
  EXPECT_DOUBLE_EQ(table.find("mine").bandwidth, 123e9);
  table.add_file(File(gpu_text("h 200", "4000")).path());
  EXPECT_DOUBLE_EQ(table.find("H200").bandwidth, 4000e9);
  EXPECT_EQ(table.all().size(), before + 1);
}

TEST(GpuTable, ABrokenFileIsAnErrorThatNamesTheField) {
  const auto error = [](const std::string& text) {
    const File file(text);
    return error_of([&] { GpuTable().add_file(file.path()); });
  };
  EXPECT_NE(error("{").find("not valid JSON"), std::string::npos);
  EXPECT_NE(error("[]").find("an object was expected"), std::string::npos);
  EXPECT_NE(error(R"({"gpus": {}})").find("gpus must be a list"), std::string::npos);
  EXPECT_NE(error(R"({"gpus": [{}]})").find("gpus[0]: name is missing"), std::string::npos);
  EXPECT_NE(error(gpu_text("x", "-1")).find("(x): bandwidth"), std::string::npos);
  EXPECT_NE(error(gpu_text("x", "1e999")), "");
  EXPECT_NE(error(R"({"gpus": [{"name": "x", "speed": 1}]})").find("unknown field speed"), std::string::npos);
}

TEST(Routing, CountsBecomeShares) {
  const Routing by_place = read_routing(File("# tokens\n1\n3\n0\n0\n").path(), 4);
  EXPECT_EQ(by_place, (Routing{0.25, 0.75, 0, 0}));
  EXPECT_EQ(read_routing(File("3 1\n0, 1\n").path(), 4), (Routing{0.5, 0, 0, 0.5}));
}

TEST(Routing, ABrokenFileIsAnErrorThatNamesTheLine) {
  const auto error = [](const std::string& text) {
    const File file(text);
    return error_of([&] { read_routing(file.path(), 4); });
  };
  EXPECT_NE(error("").find("no counts"), std::string::npos);
  EXPECT_NE(error("1\nx\n").find("line 2"), std::string::npos);
  EXPECT_NE(error("-1\n").find("line 1"), std::string::npos);
  EXPECT_NE(error("nan\n").find("line 1"), std::string::npos);
  EXPECT_NE(error("1 2 3\n").find("more than two"), std::string::npos);
  EXPECT_NE(error("4 1\n").find("experts 0 to 3"), std::string::npos);
  EXPECT_NE(error("1\n1\n1\n1\n1\n").find("line 5"), std::string::npos);
  EXPECT_NE(error("2 1\n2 1\n").find("a second time"), std::string::npos);
}

Question question() {
  Question q;
  q.model = find_model("v4-flash-0731");
  q.devices.gpu = GpuTable().find("H200");
  q.devices.count = 2;
  q.batches = {1, 16};
  q.contexts = {8192};
  q.accepted = 3;
  return q;
}

TEST(PlanReport, PutsAMeasuredRateBesideItsBound) {
  Question q = question();
  const File file(R"({"levels": [{"concurrency": 16, "output_tokens_per_second": 1061}]})");
  q.measured = read_measured(file.path());
  const Answer a = answer(std::move(q));
  EXPECT_EQ(a.rows[0].measured, 0);
  EXPECT_EQ(a.rows[1].measured, 1061);
  EXPECT_NE(text_report(a).find("50 %"), std::string::npos) << text_report(a);
  EXPECT_NE(json_report(a).find("of_bound"), std::string::npos);
  for (const char* bad : {"{", "{}", R"({"levels": [{"concurrency": 0}]})", R"({"levels": [1]})"}) {
    const File broken(bad);
    EXPECT_THROW(read_measured(broken.path()), Error) << bad;
  }
}

TEST(PlanReport, ExplainsEveryColumn) {
  const std::string text = explanation(answer(question()));
  for (const char* name : {"experts a layer", "expert bytes", "other weights", "cache", "of one device", "bytes ms",
                           "math ms", "links ms", "step ms", "tokens/s", "drafted"})
    EXPECT_NE(text.find(name), std::string::npos) << name << "\n" << text;
}

TEST(PlanReport, SaysWhatDoesNotFit) {
  Question q = question();
  q.devices.count = 1;
  EXPECT_NE(text_report(answer(q)).find("Does not fit"), std::string::npos);
  EXPECT_NE(survey(q.model, GpuTable(), q.devices, 8192).find("DGX Spark"), std::string::npos);
}

}  // namespace
}  // namespace fathom::plan
