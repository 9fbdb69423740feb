// Loads and unloads workloads that are shared libraries, in the order of its arguments:
//
//   ahead_loader load NAME PATH ... run NAME SEEDS OUT ... close NAME ...
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>

int main(int argc, char **argv) {
    std::map<std::string, void *> libraries;
    for (int i = 1; i < argc;) {
        const char *step = argv[i], *name = argv[i + 1];
        if (!strcmp(step, "load")) {
            libraries[name] = dlopen(argv[i + 2], RTLD_NOW | RTLD_LOCAL);
            if (!libraries[name]) {
                fprintf(stderr, "%s\n", dlerror());
                return 2;
            }
            i += 3;
        } else if (!strcmp(step, "run")) {
            auto run = reinterpret_cast<int (*)(int, char **)>(dlsym(libraries[name], "_Z13workload_mainiPPc"));
            char *arguments[] = {argv[i + 1], const_cast<char *>("--seeds"), argv[i + 2], const_cast<char *>("--out"),
                                 argv[i + 3], nullptr};
            if (!run || run(5, arguments))
                return 1;
            i += 4;
        } else {
            if (dlclose(libraries[name]))
                return 3;
            i += 2;
        }
    }
    return 0;
}
