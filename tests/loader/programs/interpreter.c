/*
 * In the place of the interpreter that the stand-in driver starts: hands the device process's arguments, its socket
 * and its host's pidfd to devices.py, which has an interpreter ready, and ends. Where that is not there, it becomes the
 * interpreter.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { SOCKET_FD = 3, HOST_PROCESS_FD = 4 };

static int hand_over(int argc, char **argv)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET};
	char text[32768], control[CMSG_SPACE(2 * sizeof(int))] = {0};
	int descriptors[2] = {SOCKET_FD, HOST_PROCESS_FD};
	size_t count = fcntl(HOST_PROCESS_FD, F_GETFD) < 0 ? 1 : 2, size = 0;

	int server = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	if (server < 0 || connect(server, (struct sockaddr *)&address, sizeof(address)) != 0)
		return 0;
	for (int i = 1; i < argc; i++) {
		size_t length = strlen(argv[i]) + 1;
		if (size + length > sizeof(text))
			return 0;
		memcpy(text + size, argv[i], length);
		size += length;
	}
	struct iovec part = {text, size};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control};
	message.msg_controllen = CMSG_SPACE(count * sizeof(int));
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(count * sizeof(int));
	memcpy(CMSG_DATA(header), descriptors, count * sizeof(int));
	return sendmsg(server, &message, MSG_NOSIGNAL) == (ssize_t)size;
}

int main(int argc, char **argv)
{
	if (hand_over(argc, argv))
		return 0;
	argv[0] = PYTHON;
	execv(PYTHON, argv);
	return 1;
}
