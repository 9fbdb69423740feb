/* `unrelocated LIBRARY`: call its DT_INIT as glibc before 2.32 does for some: mapped, but without a relocation. */
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

int main(int argc, char **argv)
{
	struct stat status;
	int fd = open(argc > 1 ? argv[1] : "", O_RDONLY);

	if (fd < 0 || fstat(fd, &status) != 0)
		return 1;
	char *file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	char *base = mmap(NULL, 1 << 26, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const Elf64_Ehdr *header = (const Elf64_Ehdr *)file;
	const Elf64_Phdr *segments = (const Elf64_Phdr *)(file + header->e_phoff);
	const Elf64_Dyn *dynamic = NULL;
	for (int i = 0; i < header->e_phnum; i++) {
		if (segments[i].p_type == PT_LOAD)
			memcpy(base + segments[i].p_vaddr, file + segments[i].p_offset, segments[i].p_filesz);
		if (segments[i].p_type == PT_DYNAMIC)
			dynamic = (const Elf64_Dyn *)(base + segments[i].p_vaddr);
	}
	for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++)
		if (dynamic->d_tag == DT_INIT) {
			((void (*)(void))(base + dynamic->d_un.d_ptr))();
			puts("returned");
		}
	return 0;
}
