// Decide with an exported policy: one state in, one action out.
//
//   decide policy.onnx N SEED OBSERVATION...     noise drawn here from a seed
//   decide policy.onnx N @NOISE OBSERVATION...   noise read from a text file, to replay a decision
//
// A noise file holds N uniforms, then N x M standard normals, then, for a file that takes draw_noise,
// N + 1 standard Gumbels, separated by white space; M is the last size of the input normal_noise.
// N = 0 is the anchor alone. Prints the action on the first line, then what the policy says of it.

#include <onnxruntime_cxx_api.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Noise {
  std::vector<float> gate;    // N uniforms in [0, 1): which component of a mixture
  std::vector<float> normal;  // N x M standard normals: where within it, or what an action is made of
  std::vector<float> draw;    // N + 1 standard Gumbels or none: which candidate, by a temperature
};

Noise random_noise(std::int64_t n, std::int64_t size, std::int64_t draws, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  std::normal_distribution<float> normal;
  Noise noise;
  for (std::int64_t i = 0; i < n; ++i) noise.gate.push_back(uniform(random));
  for (std::int64_t i = 0; i < n * size; ++i) noise.normal.push_back(normal(random));
  std::extreme_value_distribution<float> gumbel;
  for (std::int64_t i = 0; i < draws; ++i) noise.draw.push_back(gumbel(random));
  return noise;
}

Noise read_noise(std::int64_t n, std::int64_t size, std::int64_t draws, const std::string& path) {
  std::ifstream file(path);
  std::vector<float> numbers;
  for (float number; file >> number;) numbers.push_back(number);
  const std::int64_t made = n * (1 + size);
  if (!file.eof() || numbers.size() != static_cast<std::size_t>(made + draws))
    throw std::runtime_error(path + ": must hold " + std::to_string(made + draws) + " numbers");
  const auto start = numbers.begin();
  return {{start, start + n}, {start + n, start + made}, {start + made, numbers.end()}};
}

std::int64_t whole_number(const std::string& word) {
  std::size_t used = 0;
  const long long value = std::stoll(word, &used);
  if (used != word.size() || value < 0) throw std::invalid_argument(word);
  return value;
}

// The sizes of an input or output; -1 where the caller decides.
std::vector<std::int64_t> shape_of(const Ort::TypeInfo& info) {
  return info.GetTensorTypeAndShapeInfo().GetShape();
}

int decide(const std::vector<std::string>& words) {
  const std::int64_t n = whole_number(words[1]);

  // Errors only: ONNX Runtime warns of every input that has a default.
  Ort::Env environment(ORT_LOGGING_LEVEL_ERROR, "decide");
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(1);
  Ort::Session session(environment, words[0].c_str(), options);
  Ort::AllocatorWithDefaultOptions allocator;

  // lam, wp, temperature and k_smooth have defaults, which GetInputCount leaves out: here they stay.
  std::map<std::string, std::vector<std::int64_t>> inputs;
  for (std::size_t i = 0; i < session.GetInputCount(); ++i)
    inputs[session.GetInputNameAllocated(i, allocator).get()] = shape_of(session.GetInputTypeInfo(i));
  std::vector<std::string> outputs;
  for (std::size_t i = 0; i < session.GetOutputCount(); ++i)
    outputs.push_back(session.GetOutputNameAllocated(i, allocator).get());
  const std::int64_t action_size = shape_of(session.GetOutputTypeInfo(0)).back();

  std::vector<float> observation;
  for (std::size_t i = 3; i < words.size(); ++i) observation.push_back(std::stof(words[i]));
  const std::int64_t observation_size = inputs.at("observation").back();
  if (static_cast<std::int64_t>(observation.size()) != observation_size)
    throw std::runtime_error("the policy observes " + std::to_string(observation_size) +
                             " numbers, and " + std::to_string(observation.size()) + " were given");
  // Not every policy takes noise: one without critics has nothing to choose between.
  const bool takes_noise = inputs.count("normal_noise") > 0;
  const std::int64_t size = takes_noise ? inputs["normal_noise"].back() : 0;
  const std::int64_t draws = inputs.count("draw_noise") ? n + 1 : 0;
  Noise noise = words[2].front() == '@'
                    ? read_noise(n, size, draws, words[2].substr(1))
                    : random_noise(n, size, draws, static_cast<std::uint64_t>(whole_number(words[2])));

  const auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeCPU);
  const auto tensor = [&](std::vector<float>& values, std::vector<std::int64_t> shape) {
    return Ort::Value::CreateTensor<float>(memory, values.data(), values.size(), shape.data(),
                                           shape.size());
  };
  std::vector<const char*> given{"observation"};
  std::vector<Ort::Value> tensors;
  tensors.push_back(tensor(observation, {1, observation_size}));
  if (inputs.count("gate_noise")) {
    given.push_back("gate_noise");
    tensors.push_back(tensor(noise.gate, {1, n}));
  }
  if (takes_noise) {
    given.push_back("normal_noise");
    tensors.push_back(tensor(noise.normal, {1, n, size}));
  }
  if (draws > 0) {
    given.push_back("draw_noise");
    tensors.push_back(tensor(noise.draw, {1, draws}));
  }

  std::vector<const char*> wanted;
  for (const std::string& name : outputs) wanted.push_back(name.c_str());
  auto made = session.Run(Ort::RunOptions{nullptr}, given.data(), tensors.data(), tensors.size(),
                          wanted.data(), wanted.size());

  const float* action = made[0].GetTensorData<float>();
  for (std::int64_t i = 0; i < action_size; ++i) {
    // The graph says NaN where it cannot decide. Such an action must not reach a motor.
    if (!std::isfinite(action[i])) throw std::runtime_error("the policy cannot decide at this state");
    std::printf("%s%.9g", i ? " " : "", action[i]);
  }
  std::printf("\n");
  for (std::size_t i = 1; i < outputs.size(); ++i) {
    const auto type = made[i].GetTensorTypeAndShapeInfo().GetElementType();
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
      std::printf("%s %.9g\n", wanted[i], made[i].GetTensorData<float>()[0]);
    else if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL)
      std::printf("%s %d\n", wanted[i], made[i].GetTensorData<bool>()[0]);
    else
      std::printf("%s %lld\n", wanted[i],
                  static_cast<long long>(made[i].GetTensorData<std::int64_t>()[0]));
  }
  return 0;
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> words(values + 1, values + count);
  if (words.size() < 4) {
    std::fprintf(stderr, "usage: decide policy.onnx N SEED|@NOISE OBSERVATION...\n");
    return 2;
  }
  try {
    return decide(words);
  } catch (const std::logic_error&) {  // A word that is no number.
    std::fprintf(stderr, "decide: N, SEED and OBSERVATION must be numbers\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decide: %s\n", error.what());
  }
  return 2;
}
