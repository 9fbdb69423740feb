/*
 * A stand-in for ROCm's librocm_sysdeps_z.so.1, which the libLLVM.so of the wheel rocm-bindings-compiler needs and does
 * not have. LLVM calls it for compressed debug information alone, which neither assembling nor disassembling has. Each
 * function fails as zlib says that it may; the names and parameters are zlib's.
 */
enum { Z_STREAM_ERROR = -2 };

__attribute__((visibility("default"))) int compress2(unsigned char *to, unsigned long *to_size,
						     const unsigned char *from, unsigned long size, int level);
__attribute__((visibility("default"))) unsigned long compressBound(unsigned long size);
__attribute__((visibility("default"))) unsigned long crc32(unsigned long sum, const unsigned char *data,
							   unsigned int size);
__attribute__((visibility("default"))) int uncompress(unsigned char *to, unsigned long *to_size,
						      const unsigned char *from, unsigned long size);

/* A stand-in for zlib's function: fails, since nothing is to be compressed here. */
int compress2(unsigned char *to, unsigned long *to_size, const unsigned char *from, unsigned long size, int level)
{
	(void)to, (void)to_size, (void)from, (void)size, (void)level;
	return Z_STREAM_ERROR;
}

/* A stand-in for zlib's function, of no use without compress2. */
unsigned long compressBound(unsigned long size)
{
	return size;
}

/* A stand-in for zlib's function: no checksum, since nothing is compressed here. */
unsigned long crc32(unsigned long sum, const unsigned char *data, unsigned int size)
{
	(void)sum, (void)data, (void)size;
	return 0;
}

/* A stand-in for zlib's function: fails, since nothing is compressed here. */
int uncompress(unsigned char *to, unsigned long *to_size, const unsigned char *from, unsigned long size)
{
	(void)to, (void)to_size, (void)from, (void)size;
	return Z_STREAM_ERROR;
}
