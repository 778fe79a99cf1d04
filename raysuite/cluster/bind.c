/* Makes sockets that would listen on every interface listen on one address.
 *
 * Loaded by LD_PRELOAD into Ray's processes and their workers. bind(2) of a TCP socket to the
 * wildcard address binds it to RAYSUITE_BIND instead, a dotted IPv4 address; so does listen(2) of
 * an unbound socket. Explicit addresses, UDP and Unix sockets are left unchanged. An IPv6-only
 * socket, which cannot have an IPv4 address, is bound to IPv6's loopback.
 *
 * Kernel calls are made directly, not through dlsym: the library then needs only glibc 2.2.5, so
 * that any image can load a library that was compiled on a login node.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

static int kernel_bind(int fd, const void *address, socklen_t length)
{
    return (int)syscall(SYS_bind, fd, address, length);
}

static int option(int fd, int level, int name)
{
    int value = 0;
    socklen_t length = sizeof value;
    return getsockopt(fd, level, name, &value, &length) ? -1 : value;
}

static int is_wildcard(const struct sockaddr *address, socklen_t length)
{
    if (address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in))
        return ((const struct sockaddr_in *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
    if (address->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6)) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
        static const unsigned char mapped_any[16] = {[10] = 0xff, [11] = 0xff};
        return IN6_IS_ADDR_UNSPECIFIED(six) || !memcmp(six, mapped_any, sizeof mapped_any);
    }
    return 0;
}

/* Bind to the same port at the chosen address; -1 and errno if RAYSUITE_BIND is not an address. */
static int bind_to_chosen(int fd, const struct sockaddr *address, const char *chosen)
{
    struct in_addr four;
    if (inet_pton(AF_INET, chosen, &four) != 1) {
        errno = EADDRNOTAVAIL; /* better not to listen at all than on every interface */
        return -1;
    }
    if (address->sa_family == AF_INET) {
        struct sockaddr_in to = *(const struct sockaddr_in *)address;
        to.sin_addr = four;
        return kernel_bind(fd, &to, sizeof to);
    }
    struct sockaddr_in6 to = *(const struct sockaddr_in6 *)address;
    if (option(fd, IPPROTO_IPV6, IPV6_V6ONLY) == 1) {
        to.sin6_addr = in6addr_loopback;
    } else {
        memset(&to.sin6_addr, 0, sizeof to.sin6_addr);
        to.sin6_addr.s6_addr[10] = to.sin6_addr.s6_addr[11] = 0xff;
        memcpy(to.sin6_addr.s6_addr + 12, &four, sizeof four);
    }
    return kernel_bind(fd, &to, sizeof to);
}

PUBLIC int bind(int fd, const struct sockaddr *address, socklen_t length)
{
    const char *chosen = getenv("RAYSUITE_BIND");
    if (chosen && address && is_wildcard(address, length)
        && option(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM)
        return bind_to_chosen(fd, address, chosen);
    return kernel_bind(fd, address, length);
}

PUBLIC int listen(int fd, int backlog)
{
    const char *chosen = getenv("RAYSUITE_BIND");
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    if (chosen && !getsockname(fd, (struct sockaddr *)&name, &length)
        && is_wildcard((struct sockaddr *)&name, length)
        && ((struct sockaddr_in *)&name)->sin_port == 0
        && bind_to_chosen(fd, (struct sockaddr *)&name, chosen))
        return -1;
    return (int)syscall(SYS_listen, fd, backlog);
}
