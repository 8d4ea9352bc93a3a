/* Records and fails what this process does to files below one folder, call by call.
 *
 * Loaded with LD_PRELOAD, and passive until operations_begin. From then on every call that changes files below the folder
 * is performed and recorded under one lock, so that the operations of all threads have one order and one count. At one of
 * them the process may be killed, the write torn or cut short, or an error returned (struct plan).
 *
 * Files are identified by device and inode, looked up at every call, not by descriptor. A descriptor may be copied,
 * passed on or closed in ways that are not visible here (fclose, closedir).
 *
 * Only the process that called operations_begin is watched. A forked child is not recorded, and a child of vfork shares
 * this memory, so the process ID is compared each time.
 *
 * A call that cannot be recorded is refused with an error that a file system may return. Such calls are: copying inside
 * the kernel, stdio streams for writing, symbolic links, exchanging names, moving across the folder's edge, punching
 * holes. sync_file_range is allowed and not recorded: it makes nothing durable (its manual page, "Warning").
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

_Static_assert(sizeof(off_t) == 8, "the names ending in 64 are aliases of the others");

/* The C library's own function, looked up on first use: other libraries may call before this one is initialized. */
#define REAL(name)                                                                                                   \
    ({                                                                                                               \
        static __typeof__(&name) found;                                                                              \
        if (found == NULL)                                                                                           \
            found = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                                                      \
        found;                                                                                                       \
    })
#define ALIAS(alias, name) __asm__(".globl " #alias "\n.set " #alias ", " #name)

/* In the order of Kind in recording.py. */
enum kind { CREATE, WRITE, TRUNCATE, ALLOCATE, SYNC, DATASYNC, SYNC_ALL, RENAME, LINK, UNLINK, MKDIR, RMDIR,
            /* Not counted: */ MAP_WRITABLE, NOTE, SYNC_FAILED };
enum flag { SYNCHRONOUS = 1, GROWS = 2, UNKEPT = 4 };

/* In the order of the plans in recorder.py. */
enum action { NOTHING, KILL, TEAR, FAIL_ONCE, FAIL_LASTING, SHORT, FAIL_THEN_KILL, SHORT_LASTING };

static struct plan {
    int action;
    long at;    /* the index of the operation */
    long bytes; /* the part of a write that is done */
    int error;
} plan;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t watched; /* 0 until operations_begin */
static char root[PATH_MAX];
static size_t root_length;
static int recording = -1;
static long count; /* the number of operations performed */
static long fired; /* the number of failed and short calls */
static __thread const char *site = ""; /* the place that the calls of this thread come from: see operations_site */

/* The longest pause after a failed call. */
enum { PAUSE_US = 10000 };

/* A file's number is its place in this list. An inode may be reused with a new number: the latest one counts. */
static struct file {
    dev_t device;
    ino_t inode;
} *files;
static long file_count;

static struct name {
    long file;
    char *path;
} *names;
static long name_count;

static struct map {
    char *start;
    size_t length;
    long file;
} *maps;
static long map_count;

static void give_up(const char *why) {
    fprintf(stderr, "harness/io_trace/recorder.c: %s\n", why);
    abort();
}

static void *grown(void *list, long used, size_t size) {
    /* The list is doubled whenever its length is a power of two. */
    if ((used & (used - 1)) == 0 && (list = realloc(list, (used ? 2 * used : 1) * size)) == NULL)
        give_up("out of memory");
    return list;
}

/* Files and their names */

static const char *path_of(long file) {
    for (long i = 0; i < name_count; i++)
        if (names[i].file == file)
            return names[i].path;
    return NULL;
}

static void add_name(long file, const char *path) {
    names = grown(names, name_count, sizeof *names);
    names[name_count].file = file;
    if ((names[name_count++].path = strdup(path)) == NULL)
        give_up("out of memory");
}

static void drop_name(const char *path) {
    for (long i = 0; i < name_count; i++)
        if (strcmp(names[i].path, path) == 0) {
            free(names[i].path);
            names[i] = names[--name_count];
            return;
        }
}

static void move_names(const char *from, const char *to) {
    size_t length = strlen(from);
    drop_name(to);
    for (long i = 0; i < name_count; i++) {
        char *path = names[i].path;
        if (strncmp(path, from, length) != 0 || (path[length] != '/' && path[length] != '\0'))
            continue;
        if (asprintf(&names[i].path, "%s%s", to, path + length) < 0)
            give_up("out of memory");
        free(path);
    }
}

static long add_file(const struct stat *status, const char *path) {
    files = grown(files, file_count, sizeof *files);
    files[file_count].device = status->st_dev;
    files[file_count].inode = status->st_ino;
    add_name(file_count, path);
    return file_count++;
}

static long known(const struct stat *status) {
    for (long i = file_count - 1; i >= 0; i--)
        if (files[i].inode == status->st_ino && files[i].device == status->st_dev)
            return i;
    return -1;
}

/* Return the part of an absolute path below the root ("" for the root itself), or NULL. */
static const char *within_root(const char *path) {
    if (strncmp(path, root, root_length) != 0)
        return NULL;
    if (path[root_length] == '\0')
        return path + root_length;
    return path[root_length] == '/' ? path + root_length + 1 : NULL;
}

/* Return the number of the file at this path below the root. */
static long file_at(const struct stat *status, const char *path) {
    long file = known(status);
    if (file < 0)
        return add_file(status, path);
    if (path_of(file) == NULL)
        add_name(file, path); /* the file had another name that no call has used */
    return file;
}

/* Return the number of the file that a descriptor is open on, or -1 if it is not below the root. */
static long file_open_on(int descriptor, const struct stat *status) {
    long file = known(status);
    if (file >= 0 && path_of(file) != NULL)
        return file;
    /* The file is new; or all its known names are gone, and the inode may belong to another file now. */
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return -1;
    path[length] = '\0';
    const char *below = within_root(path);
    if (below == NULL)
        return -1;
    return file >= 0 && status->st_nlink == 0 ? file : file_at(status, below);
}

/* Return a name's path below the root, written into kept (PATH_MAX bytes), or NULL. The last part is not followed. */
static const char *below_root(int folder, const char *path, char *kept) {
    char joined[2 * PATH_MAX], parent[PATH_MAX], link[64];
    size_t length = 0;
    if (path == NULL || *path == '\0' || strlen(path) >= PATH_MAX)
        return NULL;
    if (*path != '/') {
        snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
        ssize_t got = readlink(link, joined, PATH_MAX - 1);
        if (got < 0)
            return NULL;
        length = (size_t)got;
        joined[length++] = '/';
    }
    strcpy(joined + length, path);
    length += strlen(path);
    while (length > 1 && joined[length - 1] == '/')
        joined[--length] = '\0';
    char *last = strrchr(joined, '/');
    if (strcmp(last + 1, "..") == 0 || strcmp(last + 1, ".") == 0 || last[1] == '\0')
        return NULL;
    *last = '\0';
    if (realpath(last == joined ? "/" : joined, parent) == NULL)
        return NULL;
    const char *below = within_root(parent);
    if (below == NULL || strlen(below) + strlen(last + 1) + 2 > PATH_MAX)
        return NULL;
    sprintf(kept, "%s%s%s", below, *below ? "/" : "", last + 1);
    return kept;
}

/* Recording */

static char *bytes; /* the data of a write, for the recording and for the write itself */
static size_t bytes_room;

static void make_room(size_t wanted) {
    if (wanted > bytes_room && (bytes = realloc(bytes, bytes_room = wanted)) == NULL)
        give_up("out of memory");
}

struct operation {
    enum kind kind;
    int flags;
    long file;
    const char *path, *target, *data;
    size_t data_length;
    int64_t offset, length;
};

/* One record: its length without these four bytes, then the fields that recording.py describes. */
struct __attribute__((packed)) header {
    uint32_t rest;
    uint8_t kind, flags;
    uint32_t path, target, site;
    int64_t index, file, offset, length;
};

static void record(struct operation operation) {
    if (recording >= 0) {
        const char *path = operation.path ? operation.path : "", *target = operation.target ? operation.target : "";
        const char *from = operation.kind == NOTE ? "" : site;
        struct header header = {0, operation.kind, operation.flags, strlen(path), strlen(target), strlen(from), count,
                                operation.kind == NOTE || operation.kind == SYNC_ALL ? -1 : operation.file, operation.offset,
                                operation.length};
        struct iovec parts[] = {{&header, sizeof header},
                                {(void *)path, header.path},
                                {(void *)target, header.target},
                                {(void *)from, header.site},
                                {(void *)operation.data, operation.data_length}};
        size_t total = sizeof header + header.path + header.target + header.site + operation.data_length;
        if (total > UINT32_MAX)
            give_up("a write of more than 4 GiB");
        header.rest = total - sizeof header.rest;
        ssize_t written = REAL(writev)(recording, parts, 5);
        if (written < 0 || (size_t)written != total)
            give_up("the recording can't be written: is its disk full?");
    }
    if (operation.kind < MAP_WRITABLE)
        count++;
}

/* Fault injection */

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static int due(int action) { return plan.action == action && count == plan.at; }

/* Called before each operation: dies, or returns 1 if the call must fail, as planned. A torn write dies later. */
static int struck(int is_write) {
    if (due(KILL) || (due(TEAR) && (!is_write || plan.bytes == 0)))
        die();
    if (plan.action == FAIL_THEN_KILL && fired)
        die();
    if (!due(FAIL_THEN_KILL) && !(due(FAIL_ONCE) && fired == 0) && !(plan.action == FAIL_LASTING && count >= plan.at))
        return 0;
    fired++;
    errno = plan.error;
    return 1;
}

static int ours(void) { return watched != 0 && getpid() == watched; }

static void unlock(void) {
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
}

struct subject {
    long file;
    struct stat status;
};

/* Return 1 with the lock held if the descriptor is open on a file or folder below the root, else 0. */
static int enter(int descriptor, struct subject *subject) {
    int error = errno;
    if (!ours())
        return 0;
    pthread_mutex_lock(&lock);
    /* Under the lock, because the offset of an append is the size, which no other thread can then change. */
    int inside = fstat(descriptor, &subject->status) == 0 &&
                 (S_ISREG(subject->status.st_mode) || S_ISDIR(subject->status.st_mode)) &&
                 (subject->file = file_open_on(descriptor, &subject->status)) >= 0;
    if (!inside)
        pthread_mutex_unlock(&lock);
    errno = error;
    return inside;
}

static int is_below(int descriptor) {
    struct subject subject;
    if (!enter(descriptor, &subject))
        return 0;
    unlock();
    return 1;
}

static int refused(int error) {
    errno = error;
    return -1;
}

/* Opening */

static int watched_open(int folder, const char *path, int flags, mode_t mode) {
    char kept[PATH_MAX];
    struct stat status;
    if (!ours() || !(flags & (O_CREAT | O_TRUNC)) || below_root(folder, path, kept) == NULL)
        return REAL(openat)(folder, path, flags, mode);
    pthread_mutex_lock(&lock);
    int exists = fstatat(folder, path, &status, 0) == 0;
    int creates = !exists && errno == ENOENT && (flags & O_CREAT);
    int cuts = exists && (flags & O_TRUNC) && !(flags & O_EXCL) && S_ISREG(status.st_mode) && status.st_size > 0;
    int descriptor = -1;
    if (!(creates || cuts) || !struck(0)) {
        descriptor = REAL(openat)(folder, path, flags, mode);
        if (descriptor >= 0 && creates) {
            fstat(descriptor, &status);
            record((struct operation){.kind = CREATE, .file = add_file(&status, kept), .path = kept});
        } else if (descriptor >= 0 && cuts)
            record((struct operation){.kind = TRUNCATE, .file = file_at(&status, kept), .path = kept});
    }
    unlock();
    return descriptor;
}

static mode_t mode_of(int flags, va_list more) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0;
}

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    return watched_open(AT_FDCWD, path, flags, mode);
}
ALIAS(open64, open);

int openat(int folder, const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    return watched_open(folder, path, flags, mode);
}
ALIAS(openat64, openat);

/* Fortified sources call these functions instead of open without a mode. */
int __open_2(const char *path, int flags) { return watched_open(AT_FDCWD, path, flags, 0); }
ALIAS(__open64_2, __open_2);
int __openat_2(int folder, const char *path, int flags) { return watched_open(folder, path, flags, 0); }
ALIAS(__openat64_2, __openat_2);

int creat(const char *path, mode_t mode) {
    return watched_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
ALIAS(creat64, creat);

/* Streams write through calls inside the C library, which are not visible here. */
static int writes(const char *mode) { return strpbrk(mode, "wa+") != NULL; }

FILE *fopen(const char *path, const char *mode) {
    char kept[PATH_MAX];
    if (ours() && writes(mode) && below_root(AT_FDCWD, path, kept) != NULL) {
        errno = ENOTSUP;
        return NULL;
    }
    return REAL(fopen)(path, mode);
}
ALIAS(fopen64, fopen);

FILE *fdopen(int descriptor, const char *mode) {
    if (writes(mode) && is_below(descriptor)) {
        errno = ENOTSUP;
        return NULL;
    }
    return REAL(fdopen)(descriptor, mode);
}

/* Writing */

static ssize_t perform(int descriptor, size_t length, off_t offset, int flags) {
    if (flags != 0)
        return REAL(pwritev2)(descriptor, &(struct iovec){bytes, length}, 1, offset, flags);
    return offset < 0 ? REAL(write)(descriptor, bytes, length) : REAL(pwrite)(descriptor, bytes, length, offset);
}

/* A write of any form, with the lock held. An offset of -1 means the descriptor's own position. */
static ssize_t watched_write(struct subject *subject, int descriptor, const struct iovec *parts, int part_count,
                             off_t offset, int flags) {
    size_t length = 0;
    for (int i = 0; i < part_count; i++)
        length += parts[i].iov_len;
    /* Copied first: the written bytes must be the recorded ones, even if another thread changes the caller's buffer. */
    make_room(length + 1);
    char *next = bytes;
    for (int i = 0; i < part_count; i++)
        next = mempcpy(next, parts[i].iov_base, parts[i].iov_len);
    int modes = fcntl(descriptor, F_GETFL);
    int synchronous = (modes & O_DSYNC) || (flags & (RWF_DSYNC | RWF_SYNC));
    int failed = length > 0 && struck(1);
    ssize_t result = -1;
    if (length == 0)
        result = perform(descriptor, 0, offset, flags);
    else if (!failed || (synchronous && errno == EIO)) {
        int torn = due(TEAR);
        off_t start = offset >= 0 ? offset : lseek(descriptor, 0, SEEK_CUR);
        if ((modes & O_APPEND) || (flags & RWF_APPEND))
            start = subject->status.st_size; /* even for pwrite: its manual page, "Bugs" */
        if ((torn || due(SHORT) || (plan.action == SHORT_LASTING && count >= plan.at)) &&
            (size_t)plan.bytes < length) {
            length = (size_t)plan.bytes;
            fired++;
        }
        if ((result = perform(descriptor, length, offset, flags)) > 0)
            record((struct operation){
                .kind = WRITE,
                .flags = failed ? UNKEPT : synchronous ? SYNCHRONOUS : 0,
                .file = subject->file,
                .path = path_of(subject->file),
                .data = bytes,
                .data_length = (size_t)result,
                .offset = start,
            });
        if (torn)
            die();
        if (failed) {
            /* The sync in this write failed, so readers see the written bytes. */
            result = -1;
            errno = EIO;
        }
    }
    unlock();
    return result;
}

ssize_t write(int descriptor, const void *data, size_t length) {
    struct subject subject;
    if (!enter(descriptor, &subject))
        return REAL(write)(descriptor, data, length);
    return watched_write(&subject, descriptor, &(struct iovec){(void *)data, length}, 1, -1, 0);
}

ssize_t pwrite(int descriptor, const void *data, size_t length, off_t offset) {
    struct subject subject;
    if (offset < 0 || !enter(descriptor, &subject))
        return REAL(pwrite)(descriptor, data, length, offset);
    return watched_write(&subject, descriptor, &(struct iovec){(void *)data, length}, 1, offset, 0);
}
ALIAS(pwrite64, pwrite);

ssize_t writev(int descriptor, const struct iovec *parts, int part_count) {
    struct subject subject;
    if (!enter(descriptor, &subject))
        return REAL(writev)(descriptor, parts, part_count);
    return watched_write(&subject, descriptor, parts, part_count, -1, 0);
}

ssize_t pwritev(int descriptor, const struct iovec *parts, int part_count, off_t offset) {
    struct subject subject;
    if (offset < 0 || !enter(descriptor, &subject))
        return REAL(pwritev)(descriptor, parts, part_count, offset);
    return watched_write(&subject, descriptor, parts, part_count, offset, 0);
}
ALIAS(pwritev64, pwritev);

ssize_t pwritev2(int descriptor, const struct iovec *parts, int part_count, off_t offset, int flags) {
    struct subject subject;
    if (offset < -1 || !enter(descriptor, &subject))
        return REAL(pwritev2)(descriptor, parts, part_count, offset, flags);
    return watched_write(&subject, descriptor, parts, part_count, offset, flags);
}
ALIAS(pwritev64v2, pwritev2);

/* Copying inside the kernel: callers of these use reads and writes instead. */
ssize_t copy_file_range(int in, off_t *in_offset, int out, off_t *out_offset, size_t length, unsigned flags) {
    return is_below(out) ? refused(EXDEV) : REAL(copy_file_range)(in, in_offset, out, out_offset, length, flags);
}

ssize_t sendfile(int out, int in, off_t *offset, size_t length) {
    return is_below(out) ? refused(EINVAL) : REAL(sendfile)(out, in, offset, length);
}
ALIAS(sendfile64, sendfile);

ssize_t splice(int in, off_t *in_offset, int out, off_t *out_offset, size_t length, unsigned flags) {
    return is_below(out) ? refused(EINVAL) : REAL(splice)(in, in_offset, out, out_offset, length, flags);
}

/* Lengths */

int ftruncate(int descriptor, off_t length) {
    struct subject subject;
    if (!enter(descriptor, &subject))
        return REAL(ftruncate)(descriptor, length);
    int result = struck(0) ? -1 : REAL(ftruncate)(descriptor, length);
    if (result == 0)
        record((struct operation){
            .kind = TRUNCATE, .file = subject.file, .path = path_of(subject.file), .length = length});
    unlock();
    return result;
}
ALIAS(ftruncate64, ftruncate);

int truncate(const char *path, off_t length) {
    char kept[PATH_MAX];
    struct stat status;
    if (!ours() || below_root(AT_FDCWD, path, kept) == NULL || stat(path, &status) != 0)
        return REAL(truncate)(path, length);
    pthread_mutex_lock(&lock);
    int result = struck(0) ? -1 : REAL(truncate)(path, length);
    if (result == 0)
        record((struct operation){.kind = TRUNCATE, .file = file_at(&status, kept), .path = kept, .length = length});
    unlock();
    return result;
}
ALIAS(truncate64, truncate);

static void record_allocation(const struct subject *subject, off_t offset, off_t length, int grows) {
    record((struct operation){
        .kind = ALLOCATE,
        .flags = grows ? GROWS : 0,
        .file = subject->file,
        .path = path_of(subject->file),
        .offset = offset,
        .length = length,
    });
}

int fallocate(int descriptor, int mode, off_t offset, off_t length) {
    struct subject subject;
    if (!enter(descriptor, &subject))
        return REAL(fallocate)(descriptor, mode, offset, length);
    int result = -1;
    if ((mode & ~FALLOC_FL_KEEP_SIZE) != 0)
        errno = EOPNOTSUPP;
    else if (!struck(0) && (result = REAL(fallocate)(descriptor, mode, offset, length)) == 0)
        record_allocation(&subject, offset, length, mode == 0);
    unlock();
    return result;
}
ALIAS(fallocate64, fallocate);

int posix_fallocate(int descriptor, off_t offset, off_t length) {
    struct subject subject;
    if (!enter(descriptor, &subject))
        return REAL(posix_fallocate)(descriptor, offset, length);
    int error = struck(0) ? errno : REAL(posix_fallocate)(descriptor, offset, length);
    if (error == 0)
        record_allocation(&subject, offset, length, 1);
    unlock();
    return error;
}
ALIAS(posix_fallocate64, posix_fallocate);

/* Syncs */

static int watched_sync(int descriptor, enum kind kind, int (*perform_sync)(int)) {
    struct subject subject;
    if (!enter(descriptor, &subject))
        return perform_sync(descriptor);
    int failed = struck(0), result = failed ? -1 : perform_sync(descriptor);
    if (result == 0 || failed)
        record((struct operation){
            .kind = failed ? SYNC_FAILED : kind,
            .file = kind == SYNC_ALL ? -1 : subject.file,
            .path = path_of(subject.file)});
    unlock();
    return result;
}

int fsync(int descriptor) { return watched_sync(descriptor, SYNC, REAL(fsync)); }
int fdatasync(int descriptor) { return watched_sync(descriptor, DATASYNC, REAL(fdatasync)); }
int syncfs(int descriptor) { return watched_sync(descriptor, SYNC_ALL, REAL(syncfs)); }

void sync(void) {
    if (!ours()) {
        REAL(sync)();
        return;
    }
    pthread_mutex_lock(&lock);
    /* This call cannot return an error: if it must fail, it does nothing. */
    if (!struck(0)) {
        REAL(sync)();
        record((struct operation){.kind = SYNC_ALL});
    }
    unlock();
}

/* Names */

/* Return 1 with the lock held if both names are below the root, 0 if neither is, -1 (refused) if only one is. */
static int enter_both(int from_folder, const char *from, char *from_kept, int to_folder, const char *to, char *to_kept) {
    if (!ours())
        return 0;
    int from_below = below_root(from_folder, from, from_kept) != NULL;
    int to_below = below_root(to_folder, to, to_kept) != NULL;
    if (from_below != to_below)
        return refused(EXDEV);
    if (from_below)
        pthread_mutex_lock(&lock);
    return from_below;
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    char from_kept[PATH_MAX], to_kept[PATH_MAX];
    struct stat status, replaced;
    int inside = enter_both(from_folder, from, from_kept, to_folder, to, to_kept);
    if (inside <= 0)
        return inside < 0 ? -1 : REAL(renameat2)(from_folder, from, to_folder, to, flags);
    int result = -1;
    int exists = fstatat(from_folder, from, &status, AT_SYMLINK_NOFOLLOW) == 0;
    int nothing_to_do = exists && fstatat(to_folder, to, &replaced, AT_SYMLINK_NOFOLLOW) == 0 &&
                        ((flags & RENAME_NOREPLACE) || status.st_ino == replaced.st_ino);
    if ((flags & ~(unsigned)RENAME_NOREPLACE) != 0)
        errno = EINVAL;
    else if (!exists || nothing_to_do)
        result = REAL(renameat2)(from_folder, from, to_folder, to, flags);
    else if (!struck(0) && (result = REAL(renameat2)(from_folder, from, to_folder, to, flags)) == 0) {
        long file = file_at(&status, from_kept);
        move_names(from_kept, to_kept);
        record((struct operation){.kind = RENAME, .file = file, .path = from_kept, .target = to_kept});
    }
    unlock();
    return result;
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    return renameat2(from_folder, from, to_folder, to, 0);
}

int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    char from_kept[PATH_MAX], to_kept[PATH_MAX];
    struct stat status, taken;
    int inside = enter_both(from_folder, from, from_kept, to_folder, to, to_kept);
    if (inside <= 0)
        return inside < 0 ? -1 : REAL(linkat)(from_folder, from, to_folder, to, flags);
    int possible = fstatat(from_folder, from, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                   fstatat(to_folder, to, &taken, AT_SYMLINK_NOFOLLOW) != 0;
    int result = possible && struck(0) ? -1 : REAL(linkat)(from_folder, from, to_folder, to, flags);
    if (result == 0) {
        long file = file_at(&status, from_kept);
        add_name(file, to_kept);
        record((struct operation){.kind = LINK, .file = file, .path = from_kept, .target = to_kept});
    }
    unlock();
    return result;
}

int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int symlinkat(const char *from, int folder, const char *to) {
    char kept[PATH_MAX];
    return ours() && below_root(folder, to, kept) != NULL ? refused(EPERM) : REAL(symlinkat)(from, folder, to);
}

int symlink(const char *from, const char *to) { return symlinkat(from, AT_FDCWD, to); }

int unlinkat(int folder, const char *path, int flags) {
    char kept[PATH_MAX];
    struct stat status;
    if (!ours() || below_root(folder, path, kept) == NULL)
        return REAL(unlinkat)(folder, path, flags);
    pthread_mutex_lock(&lock);
    int possible = fstatat(folder, path, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                   !S_ISDIR(status.st_mode) == !(flags & AT_REMOVEDIR);
    int result = possible && struck(0) ? -1 : REAL(unlinkat)(folder, path, flags);
    if (result == 0) {
        long file = file_at(&status, kept);
        drop_name(kept);
        record((struct operation){.kind = flags & AT_REMOVEDIR ? RMDIR : UNLINK, .file = file, .path = kept});
    }
    unlock();
    return result;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int remove(const char *path) {
    int result = unlink(path);
    return result != 0 && errno == EISDIR ? rmdir(path) : result;
}

int mkdirat(int folder, const char *path, mode_t mode) {
    char kept[PATH_MAX];
    struct stat status;
    if (!ours() || below_root(folder, path, kept) == NULL)
        return REAL(mkdirat)(folder, path, mode);
    pthread_mutex_lock(&lock);
    int possible = fstatat(folder, path, &status, AT_SYMLINK_NOFOLLOW) != 0;
    int result = possible && struck(0) ? -1 : REAL(mkdirat)(folder, path, mode);
    if (result == 0 && fstatat(folder, path, &status, AT_SYMLINK_NOFOLLOW) == 0)
        record((struct operation){.kind = MKDIR, .file = add_file(&status, kept), .path = kept});
    unlock();
    return result;
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* Maps */

static struct map *map_at(const void *start) {
    for (long i = map_count - 1; i >= 0; i--)
        if ((const char *)start >= maps[i].start && (const char *)start < maps[i].start + maps[i].length)
            return &maps[i];
    return NULL;
}

static void record_map(long file, off_t offset, size_t length) {
    record((struct operation){
        .kind = MAP_WRITABLE, .file = file, .path = path_of(file), .offset = offset, .length = (int64_t)length});
}

void *mmap(void *wanted, size_t length, int protection, int flags, int descriptor, off_t offset) {
    struct subject subject;
    if (!(flags & MAP_SHARED) || (flags & MAP_ANONYMOUS) || !enter(descriptor, &subject))
        return REAL(mmap)(wanted, length, protection, flags, descriptor, offset);
    void *start = REAL(mmap)(wanted, length, protection, flags, descriptor, offset);
    if (start != MAP_FAILED) {
        maps = grown(maps, map_count, sizeof *maps);
        maps[map_count++] = (struct map){start, length, subject.file};
        if (protection & PROT_WRITE)
            record_map(subject.file, offset, length);
    }
    unlock();
    return start;
}
ALIAS(mmap64, mmap);

int munmap(void *start, size_t length) {
    if (!ours())
        return REAL(munmap)(start, length);
    pthread_mutex_lock(&lock);
    struct map *map = map_at(start);
    int result = REAL(munmap)(start, length);
    if (result == 0 && map != NULL && length >= map->length)
        *map = maps[--map_count];
    unlock();
    return result;
}

int mprotect(void *start, size_t length, int protection) {
    int result = REAL(mprotect)(start, length, protection);
    if (result != 0 || !(protection & PROT_WRITE) || !ours())
        return result;
    pthread_mutex_lock(&lock);
    struct map *map = map_at(start);
    if (map != NULL)
        record_map(map->file, (char *)start - map->start, length);
    unlock();
    return result;
}

int msync(void *start, size_t length, int flags) {
    if (!ours())
        return REAL(msync)(start, length, flags);
    pthread_mutex_lock(&lock);
    struct map *map = flags & MS_SYNC ? map_at(start) : NULL;
    int failed = map != NULL && struck(0), result = failed ? -1 : REAL(msync)(start, length, flags);
    if (map != NULL && (result == 0 || failed))
        record((struct operation){
            .kind = failed ? SYNC_FAILED : DATASYNC, .file = map->file, .path = path_of(map->file)});
    unlock();
    return result;
}

/* A background thread of RocksDB sleeps for a second after each error. Nothing is to heal here, so it sleeps less. */
int usleep(useconds_t microseconds) {
    int shortened = ours() && fired > 0 && microseconds > PAUSE_US;
    return REAL(usleep)(shortened ? PAUSE_US : microseconds);
}

/* The functions that recorder.py calls */

/* Watch the folder from now on, once per process. Return 0, or an error number. */
int operations_begin(const char *folder, const char *recording_path, int action, long at, long length, int error) {
    struct stat status;
    if (watched != 0)
        return EALREADY;
    if (realpath(folder, root) == NULL || stat(root, &status) != 0)
        return errno;
    if (!S_ISDIR(status.st_mode))
        return ENOTDIR;
    root_length = strlen(root);
    if (recording_path != NULL) {
        recording = REAL(openat)(AT_FDCWD, recording_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (recording < 0 || REAL(write)(recording, "iotrace2", 8) != 8)
            return errno;
    }
    add_file(&status, "");
    plan = (struct plan){action, at, length, error};
    watched = getpid();
    return 0;
}

long operations_count(void) {
    pthread_mutex_lock(&lock);
    long now = count;
    pthread_mutex_unlock(&lock);
    return now;
}

/* Return how many calls the plan has failed or cut short. */
long operations_fired(void) {
    pthread_mutex_lock(&lock);
    long now = fired;
    pthread_mutex_unlock(&lock);
    return now;
}

/* Set the place that the calls of this thread come from. The text stays where it is, and is not changed. */
void operations_site(const char *text) { site = text; }

int operations_note(const char *text, size_t length) {
    if (!ours())
        return ESRCH;
    pthread_mutex_lock(&lock);
    record((struct operation){.kind = NOTE, .data = text, .data_length = length});
    unlock();
    return 0;
}
