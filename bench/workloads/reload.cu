// Modules that come and go: one image is unloaded and another, with a kernel of the same name, is loaded from the same
// host address, 50 times over, by each of the driver's load calls in turn and by both launch calls.
//
//   reload --images DIR: DIR holds reload_one.fatbin and reload_two.fatbin.
#include "harness.cuh"

#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <set>

// The driver is opened the way frameworks open it.
static void *driver_symbol(const char *name) {
    static void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *symbol = library ? dlsym(library, name) : nullptr;
    if (!symbol) {
        fprintf(stderr, "libcuda.so.1: %s: %s\n", name, dlerror());
        exit(3);
    }
    return symbol;
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x) // cuda.h renames some functions to their newer versions
#define DRIVER(name, ...)                                                                                            \
    do {                                                                                                             \
        static auto function_ = reinterpret_cast<decltype(&name)>(driver_symbol(TEXT(name)));                        \
        CUresult status_ = function_(__VA_ARGS__);                                                                   \
        if (status_ != CUDA_SUCCESS) {                                                                               \
            fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, TEXT(name), int(status_));                  \
            exit(3);                                                                                                 \
        }                                                                                                            \
    } while (0)

static std::vector<char> read(const std::string &path) {
    FILE *file = fopen(path.c_str(), "rb");
    if (!file) {
        perror(path.c_str());
        exit(2);
    }
    std::vector<char> bytes;
    char part[4096];
    size_t got;
    while ((got = fread(part, 1, sizeof part, file)) > 0)
        bytes.insert(bytes.end(), part, part + got);
    fclose(file);
    return bytes;
}

enum { MODULE_DATA, MODULE_DATA_EX, MODULE_FILE, MODULE_FATBIN, LIBRARY, FORMS };

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "reload");
    const int n = 4000, rounds = 50;
    std::string folder = run.option("--images", ".");
    const std::string paths[2] = {folder + "/reload_one.fatbin", folder + "/reload_two.fatbin"};
    const std::vector<char> images[2] = {read(paths[0]), read(paths[1])};
    // Fatbin containers are read as 8-byte words.
    std::vector<uint64_t> buffer((std::max(images[0].size(), images[1].size()) + 7) / 8);
    const unsigned table[32] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 12, 13, 14, 15, 16,
                                9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 12, 13, 14, 15, 17};
    bench::Buffer<uint32_t> in(n), out(n);
    CUDA(cudaFree(nullptr));
    std::set<std::pair<int, void *>> modules, functions; // which image, handle
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<uint32_t> x(n), want(n);
        for (uint32_t &word : x)
            word = random.word();
        in.set(x);
        // All rounds with the first seed, then one round a seed.
        for (int round = 0; round < (seed ? 1 : rounds); round++)
            for (int which = 0; which < 2; which++) {
                int form = (round + seed) % FORMS;
                memset(buffer.data(), 0, buffer.size() * 8);
                memcpy(buffer.data(), images[which].data(), images[which].size());
                CUmodule module = nullptr;
                CUlibrary library = nullptr;
                CUfunction function = nullptr;
                if (form == MODULE_DATA)
                    DRIVER(cuModuleLoadData, &module, buffer.data());
                else if (form == MODULE_DATA_EX)
                    DRIVER(cuModuleLoadDataEx, &module, buffer.data(), 0, nullptr, nullptr);
                else if (form == MODULE_FILE)
                    DRIVER(cuModuleLoad, &module, paths[which].c_str());
                else if (form == MODULE_FATBIN)
                    DRIVER(cuModuleLoadFatBinary, &module, buffer.data());
                else
                    DRIVER(cuLibraryLoadData, &library, buffer.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
                if (form == LIBRARY) {
                    CUkernel kernel = nullptr;
                    DRIVER(cuLibraryGetKernel, &kernel, library, "work");
                    function = reinterpret_cast<CUfunction>(kernel);
                } else {
                    DRIVER(cuModuleGetFunction, &function, module, "work");
                }
                modules.insert({which, form == LIBRARY ? (void *)library : (void *)module});
                functions.insert({which, function});

                CUdeviceptr from = CUdeviceptr((uint32_t *)in), to = CUdeviceptr((uint32_t *)out);
                int count = n;
                void *arguments[] = {&from, &to, &count};
                unsigned grid = bench::cover(n, 128);
                out.poison();
                run.launch("work", grid, 128, {uint64_t(which ? 8 : 4) * n, 4ull * n}, [&] {
                    if (round % 2) {
                        CUlaunchConfig config = {};
                        config.gridDimX = grid;
                        config.gridDimY = config.gridDimZ = 1;
                        config.blockDimX = 128;
                        config.blockDimY = config.blockDimZ = 1;
                        DRIVER(cuLaunchKernelEx, &config, function, arguments, nullptr);
                    } else {
                        DRIVER(cuLaunchKernel, function, grid, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr);
                    }
                });
                std::vector<uint32_t> result = out.get();
                for (int i = 0; i < n; i++)
                    want[i] = which ? x[i] * 3 + table[i % 128 % 32] : x[i] * 2 + 1;
                run.same(which ? "two" : "one", result, want);
                run.output(result);
                if (form == LIBRARY)
                    DRIVER(cuLibraryUnload, library);
                else
                    DRIVER(cuModuleUnload, module);
            }
        run.end_seed();
    }
    auto shared = [](const std::set<std::pair<int, void *>> &handles) {
        int count = 0;
        for (const auto &handle : handles)
            count += handle.first == 0 && handles.count({1, handle.second});
        return std::to_string(count);
    };
    run.extra("module_handles_of_both", shared(modules));
    run.extra("function_handles_of_both", shared(functions));
    run.extra("image_addresses", "1");
    run.extra("rounds", std::to_string(rounds));
    return run.finish();
}
