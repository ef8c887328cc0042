/* The program in the containers of the tests: static, without a library beside it.
 *   sleep         runs until killed; ends with status 0 on SIGTERM
 *   stubborn      the same, but ignores SIGTERM
 *   exit N        prints a line and exits with status N
 *   die           kills itself by SIGSEGV
 *   spin          uses all the CPU it gets
 *   count FILE    writes a growing number into a file every millisecond
 *   eat           takes memory until it is killed
 *   fork          makes processes until it cannot, prints how many, and sleeps
 *   confined      says what it can do that it should not be able to; status 0 if nothing
 *   ported CAPS ADDRESS PORTS NAME  says what is amiss of its network, as an ordinary program of that name with those capabilities,
 *                 that address first and those ports for its connections; status 0 if nothing, else 1
 *   quit          says that it waits; ends with status 7 on SIGQUIT; ignores SIGTERM
 *   beside        the same, for a command beside the container's program, whose group it must be in
 *   flood [COUNT] writes to its output for ever, or so many lines until a write fails
 *   cat FILE      prints what is in a file
 *   remove FILE   removes a file
 *   whoami        prints who runs it, and where
 *   meet DIR      listens on DIR/port.sock, and says so to whoever connects
 *   fill DIR      makes files in a directory, and one as long as can be, until neither goes on; prints how many and how long; sleeps
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static void leave(int signal) { (void)signal; _exit(0); }

static int bad;
static void check(const char *what, int holds) {
    if (!holds) { printf("NOT CONFINED: %s (%s)\n", what, strerror(errno)); bad = 1; }
}

static int same_file(const char *a, const char *b) {
    char texts[2][4096];
    const char *paths[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        int file = open(paths[i], O_RDONLY);
        int length = read(file, texts[i], sizeof texts[i] - 1);
        if (length <= 0) return 0;
        texts[i][length] = 0;
        close(file);
    }
    return !strcmp(texts[0], texts[1]);
}

static int confined(int beside) {
    check("root is read-only", open("/probe-was-here", O_CREAT | O_WRONLY, 0644) < 0 && errno == EROFS);
    check("no new privileges", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    for (int capability = 0; capability < 41; capability++)
        check("capability dropped", prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 0);
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    int filtered = 0, effective = -1;
    while (status && fgets(line, sizeof line, status)) {
        if (!strncmp(line, "Seccomp:\t2", 10)) filtered = 1;
        if (!strncmp(line, "CapEff:", 7)) effective = strtoull(line + 8, 0, 16) != 0;
    }
    char map[64] = "", beside_map[64] = "";
    read(open("/proc/self/uid_map", O_RDONLY), map, sizeof map - 1);
    read(open("/proc/1/uid_map", O_RDONLY), beside_map, sizeof beside_map - 1);
    check("in the user namespace of the container", *map && !strcmp(map, beside_map) && getuid() == 0);
    check("system calls are filtered", filtered);
    check("no effective capabilities", effective == 0);
    check("process 1 of its own namespace, or beside it", (getpid() == 1) != beside && kill(1, 0) == 0);
    check("in the control groups of the container", same_file("/proc/1/cgroup", "/proc/self/cgroup"));
    check("no mount", mount("none", "/tmp", "tmpfs", 0, 0) < 0);
    check("no user namespace", unshare(CLONE_NEWUSER) < 0);
    check("no clone into a user namespace", syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0) < 0);
    check("no clone3", syscall(SYS_clone3, 0, 0) < 0 && errno == ENOSYS);
    check("no ptrace", ptrace(PTRACE_TRACEME, 0, 0, 0) < 0);
    check("no bpf", syscall(SYS_bpf, 0, 0, 0) < 0 && (errno == ENOSYS || errno == EPERM));
    check("no vsock", socket(40, SOCK_STREAM, 0) < 0);
    check("no packet socket", socket(AF_PACKET, SOCK_RAW, 0) < 0);
    check("no device node", mknod("/tmp/mem", S_IFCHR | 0600, (1 << 8) | 1) < 0 || open("/tmp/mem", O_RDONLY) < 0);
    check("proc is protected", open("/proc/sysrq-trigger", O_WRONLY) < 0);
    check("kcore is masked", lseek(open("/proc/kcore", O_RDONLY), 0, SEEK_END) <= 0);
    const char *masked[] = {"/proc/slabinfo", "/proc/vmallocinfo", "/proc/pagetypeinfo", "/proc/kallsyms"};
    for (int i = 0; i < 4; i++) {
        char byte;
        check(masked[i], read(open(masked[i], O_RDONLY), &byte, 1) <= 0);
    }
    int plain = open("/tmp/privileged", O_CREAT | O_RDWR, 0755);
    check("files are made", plain >= 0 && fchmod(plain, 0700) == 0 && chmod("/tmp/privileged", 01755) == 0);
    check("no set-user-id bit by fchmod", fchmod(plain, 04755) < 0);
    check("no set-group-id bit by chmod", chmod("/tmp/privileged", 02755) < 0);
    check("nor by fchmodat", fchmodat(AT_FDCWD, "/tmp/privileged", 06755, 0) < 0);
    check("nor by open", open("/tmp/privileged2", O_CREAT | O_RDWR, 04755) < 0);
    check("nor by creat", creat("/tmp/privileged3", 04755) < 0);
    check("nor by openat2", syscall(SYS_openat2, AT_FDCWD, "/tmp", (unsigned long[]){0, 0, 0}, 24) < 0);
    check("a mode that does not count does not matter", open("/tmp/privileged", O_RDONLY, 06777) >= 0);
    struct stat made;
    check("none was made", fstat(plain, &made) == 0 && !(made.st_mode & 06000));
    DIR *net = opendir("/sys/class/net");
    struct dirent *entry;
    int others = 0;
    while (net && (entry = readdir(net)))
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, "lo") && !strstr(entry->d_name, "tunl") &&
            !strstr(entry->d_name, "sit") && !strstr(entry->d_name, "gre") && !strstr(entry->d_name, "ip6") &&
            !strstr(entry->d_name, "erspan") && !strstr(entry->d_name, "vti") && !strstr(entry->d_name, "bonding")) {
            printf("sees interface %s\n", entry->d_name);
            others++;
        }
    check("no network interface", others == 0);
    unsigned long nodes = 0;
    int mode = 0;
    check("memory policy can be asked for, as DPDK does", syscall(SYS_get_mempolicy, &mode, &nodes, 64, 0, 0) == 0 || errno == ENOSYS || errno == EINVAL);
    check("shared memory works", syscall(SYS_memfd_create, "x", MFD_ALLOW_SEALING) >= 0);
    check("/tmp can be written", open("/tmp/x", O_CREAT | O_WRONLY, 0644) >= 0);
    check("unix sockets work", socket(AF_UNIX, SOCK_SEQPACKET, 0) >= 0);
    return bad;
}

static int contains(const char *path, const char *text) {
    static char content[65536];
    int file = open(path, O_RDONLY);
    int length = file < 0 ? 0 : read(file, content, sizeof content - 1);
    content[length < 0 ? 0 : length] = 0;
    close(file);
    return strstr(content, text) != 0;
}

static int bound(const char *address, int port, int option) {
    int on = 1, one = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &at.sin_addr);
    if (option && setsockopt(one, IPPROTO_IP, option, &on, sizeof on) < 0) return -1;
    return bind(one, (struct sockaddr *)&at, sizeof at) < 0 ? -1 : one;
}

static int ported(const char *caps, const char *address, const char *ports, const char *name) {
    /* What it is given, and all of it before its first instruction. */
    char line[256];
    snprintf(line, sizeof line, "CapEff:\t%s\n", caps);
    check("its capabilities are in effect", contains("/proc/self/status", line));
    snprintf(line, sizeof line, "CapBnd:\t%s\n", caps);
    check("and no others are in reach", contains("/proc/self/status", line));
    struct sockaddr_in away = {.sin_family = AF_INET, .sin_port = htons(9)}, own;
    inet_pton(AF_INET, "192.0.2.1", &away.sin_addr);
    socklen_t length = sizeof own;
    int out = socket(AF_INET, SOCK_DGRAM, 0);
    check("there is a way out", connect(out, (struct sockaddr *)&away, sizeof away) == 0);
    check("from its first address", getsockname(out, (struct sockaddr *)&own, &length) == 0 &&
                                        !strcmp(inet_ntoa(own.sin_addr), address));
    check("it forwards nothing", contains("/proc/sys/net/ipv4/ip_forward", "0"));
    check("from one of its own ports", contains("/proc/sys/net/ipv4/ip_local_port_range", ports));
    check("through a next hop that is known", contains("/proc/net/arp", "169.254.1.1") &&
                                                  contains("/proc/net/arp", "02:69:6e:63:6f:00"));
    struct ifaddrs *all, *of;
    int tentative = 0, loops = 0;
    getifaddrs(&all);
    for (of = all; of; of = of->ifa_next)
        if (of->ifa_addr && of->ifa_addr->sa_family == AF_INET && !strcmp(of->ifa_name, "lo")) loops++;
    check("its loopback interface is up", loops == 1);
    FILE *six = fopen("/proc/net/if_inet6", "r");
    while (six && fgets(line, sizeof line, six)) {
        unsigned flags = 0;
        sscanf(line, "%*s %*s %*s %*s %x", &flags);
        if (flags & 0x40) tentative++;
        check("no address of its own making", strncmp(line, "fe80", 4));
    }
    check("its addresses of IPv6 serve at once", !tentative);
    check("any user may serve a low port", bound("0.0.0.0", 80, 0) >= 0);
    check("it may ask whether a machine is there", socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP) >= 0);
    check("its files can be written", open("/probe-was-here", O_CREAT | O_WRONLY, 0644) >= 0 && open("/run/x", O_CREAT, 0644) >= 0 &&
                                          open("/tmp/x", O_CREAT, 0644) >= 0);
    check("its output can be opened", open("/dev/stdout", O_WRONLY | O_APPEND) >= 0 && open("/dev/stderr", O_WRONLY | O_CREAT, 0644) >= 0);
    char host[256] = "";
    gethostname(host, sizeof host);
    check("its name", !strcmp(host, name) && contains("/etc/hostname", name));
    snprintf(line, sizeof line, "%s\t%s", address, name);
    check("it finds itself by its name", contains("/etc/hosts", line) && contains("/etc/hosts", "localhost"));
    check("it knows name servers", access("/etc/resolv.conf", R_OK) == 0);

    /* What it cannot do to its network, and to that of others. */
    struct ifreq eth0 = {.ifr_name = "eth0"};
    check("it has eth0", ioctl(out, SIOCGIFHWADDR, &eth0) == 0);
    eth0.ifr_hwaddr.sa_data[5] ^= 1;
    check("it keeps its MAC address", ioctl(out, SIOCSIFHWADDR, &eth0) < 0 && errno == EPERM);
    struct sockaddr_in other = {.sin_family = AF_INET};
    inet_pton(AF_INET, "10.0.0.99", &other.sin_addr);
    memcpy(&eth0.ifr_addr, &other, sizeof other);
    check("it keeps its address", ioctl(out, SIOCSIFADDR, &eth0) < 0 && errno == EPERM);
    eth0.ifr_flags = 0;
    check("it keeps it up", ioctl(out, SIOCSIFFLAGS, &eth0) < 0 && errno == EPERM);
    eth0.ifr_mtu = 9000;
    check("it keeps its MTU", ioctl(out, SIOCSIFMTU, &eth0) < 0 && errno == EPERM);
    check("no whole frames", socket(AF_PACKET, SOCK_RAW, 0) < 0);
    check("no raw packets", socket(AF_INET, SOCK_RAW, IPPROTO_RAW) < 0 && socket(AF_INET6, SOCK_RAW, IPPROTO_TCP) < 0);
    check("no other address", bound("10.0.0.99", 0, 0) < 0 && errno == EADDRNOTAVAIL);
    check("nor as a proxy", bound("10.0.0.99", 0, IP_TRANSPARENT) < 0);
    int free = bound("10.0.0.99", 0, IP_FREEBIND);
    check("nor ahead of time", free < 0 || sendto(free, "x", 1, 0, (struct sockaddr *)&away, sizeof away) < 0);
    check("settings stay", open("/proc/sys/net/ipv4/ip_forward", O_WRONLY) < 0);
    check("no other namespace", syscall(SYS_setns, open("/proc/1/ns/net", O_RDONLY), CLONE_NEWNET) < 0);
    check("no new one", unshare(CLONE_NEWNET) < 0 && unshare(CLONE_NEWUSER) < 0);
    check("process 1 is its own", getpid() == 1);
    DIR *net = opendir("/sys/class/net");
    struct dirent *entry;
    int own_ones = 0;
    while (net && (entry = readdir(net))) {
        if (!strncmp(entry->d_name, "eth", 3)) own_ones++;
        check("no interface of the machine", strncmp(entry->d_name, "inco", 4) && strncmp(entry->d_name, "docker", 6) &&
                                                 strncmp(entry->d_name, "veth", 4));
    }
    check("one interface", own_ones == 1);
    return bad;
}

static void quit_with_7(int signal) { (void)signal; _exit(7); }

int main(int argc, char **argv) {
    const char *verb = argc > 1 ? argv[1] : "sleep";
    setvbuf(stdout, 0, _IONBF, 0);
    if (!strcmp(verb, "sleep")) {
        signal(SIGTERM, leave);
        for (;;) pause();
    }
    if (!strcmp(verb, "stubborn")) {
        signal(SIGTERM, SIG_IGN);
        for (;;) pause();
    }
    if (!strcmp(verb, "exit")) {
        printf("leaving with %s; PROBE=%s\n", argv[2], getenv("PROBE") ? getenv("PROBE") : "");
        return atoi(argv[2]);
    }
    if (!strcmp(verb, "die")) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile int *)0 = 1;
    }
    if (!strcmp(verb, "spin")) for (volatile long i = 0;; i++) {}
    if (!strcmp(verb, "count")) {
        int file = open(argv[2], O_CREAT | O_WRONLY, 0644);
        if (file < 0) { perror(argv[2]); return 1; }
        for (long i = 1;; i++) {
            char text[32];
            int length = snprintf(text, sizeof text, "%ld\n", i);
            if (pwrite(file, text, length, 0) < 0) return 2;
            struct timespec millisecond = {0, 1000000};
            nanosleep(&millisecond, 0);
        }
    }
    if (!strcmp(verb, "eat")) for (;;) {
        char *more = malloc(1 << 20);
        if (more) memset(more, 1, 1 << 20);
    }
    if (!strcmp(verb, "fork")) {
        int made = 0;
        for (int pid; (pid = fork()) >= 0; made++)
            if (pid == 0) for (;;) pause();
        printf("%d processes\n", made + 1);
        return 0;
    }
    if (!strcmp(verb, "flood")) {
        signal(SIGTERM, leave);
        long left = argc > 2 ? atol(argv[2]) : -1;
        while (left-- && write(1, "flood of words\n", 15) > 0) {}
        return 0;
    }
    if (!strcmp(verb, "cat")) {
        char text[4096];
        int file = open(argv[2], O_RDONLY), length = read(file, text, sizeof text);
        if (length < 0) { perror(argv[2]); return 1; }
        return write(1, text, length) != length;
    }
    if (!strcmp(verb, "remove")) return unlink(argv[2]) != 0;
    if (!strcmp(verb, "whoami")) {
        char where[4096];
        printf("%d:%d %s\n", getuid(), getgid(), getcwd(where, sizeof where));
        return 0;
    }
    if (!strcmp(verb, "meet")) {
        struct sockaddr_un address = {AF_UNIX};
        snprintf(address.sun_path, sizeof address.sun_path, "%s/port.sock", argv[2]);
        int listener = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1)) {
            perror(address.sun_path);
            return 1;
        }
        for (int peer; (peer = accept(listener, 0, 0)) >= 0; close(peer)) write(peer, "here", 4);
        return 2;
    }
    if (!strcmp(verb, "fill")) {
        char path[256];
        static char block[4096];
        long files = 0, bytes = 0, more;
        snprintf(path, sizeof path, "%s/long", argv[2]);
        int file = open(path, O_CREAT | O_WRONLY, 0644);
        while ((more = write(file, block, sizeof block)) > 0 && bytes < 64 << 20) bytes += more;
        for (; files < 100000; files++) {
            snprintf(path, sizeof path, "%s/%ld", argv[2], files);
            if (open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644) < 0 && errno != EMFILE) break;
        }
        printf("%ld files, %ld bytes\n", files, bytes);
        for (;;) pause();
    }
    if (!strcmp(verb, "ported")) return ported(argv[2], argv[3], argv[4], argv[5]);
    if (!strcmp(verb, "quit")) {
        signal(SIGQUIT, quit_with_7);
        signal(SIGTERM, SIG_IGN);
        puts("waits");
        for (;;) pause();
    }
    if (!strcmp(verb, "confined")) return confined(0);
    if (!strcmp(verb, "beside")) return confined(1);
    fprintf(stderr, "no such verb: %s\n", verb);
    return 99;
}
