/* System calls of the auditing module, which has no libc. They return what the kernel does: a negative errno on failure. */
#ifndef NEUTRINO_AUDIT_CALLS_H
#define NEUTRINO_AUDIT_CALLS_H

#include <sys/syscall.h>

/*
 * Make a system call with up to four arguments, without libc. Returns what the kernel does: a negative errno on
 * failure.
 */
static inline long nt_audit_call(long number, long first, long second, long third, long fourth)
{
#if defined(__x86_64__)
	register long last __asm__("r10") = fourth;
	__asm__ volatile("syscall"
			 : "+a"(number)
			 : "D"(first), "S"(second), "d"(third), "r"(last)
			 : "rcx", "r11", "memory");
	return number;
#elif defined(__aarch64__)
	register long which __asm__("x8") = number;
	register long ret __asm__("x0") = first;
	register long x1 __asm__("x1") = second;
	register long x2 __asm__("x2") = third;
	register long x3 __asm__("x3") = fourth;
	__asm__ volatile("svc 0" : "+r"(ret) : "r"(which), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return ret;
#else
#error "system calls of this processor are not known"
#endif
}

#endif
