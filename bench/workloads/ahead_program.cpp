// A program that knows nothing but its library: a workload built as a shared library, whose main is workload_main.
int workload_main(int argc, char **argv);

int main(int argc, char **argv) { return workload_main(argc, argv); }
