/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory: the heap for cuMemAlloc and pinned memory, memfds for what cuMemCreate makes.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/standins/cuda_internal.h"

#define MEMORY_NAME "stand-in device memory of "
#define GRANULARITY ((size_t)2 << 20)
#define REGIONS_MAX 16384

struct region {
    enum standin_kind kind;
    int device; /* of what is mapped, for a reservation */
    int machine; /* of a handle and a reservation: the machine's number of that device */
    uint64_t address; /* of a handle: its number */
    uint64_t bytes;
    int fd; /* of a handle */
    bool mapped;
    int access; /* PROT_* */
    int accesses[STANDIN_DEVICES_MAX]; /* of a reservation: each device's own */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct region regions[REGIONS_MAX];
static size_t region_end; /* none is behind it */
static uint16_t by_address[REGIONS_MAX]; /* those with addresses, in their order */
static size_t address_count;
static size_t total = (size_t)1 << 30;
static uint64_t next_handle = 1;

void standin_cuda_total(size_t bytes)
{
    total = bytes;
}

/* How many begin at or before `address`. */
static size_t begun_at(uint64_t address)
{
    size_t low = 0, high = address_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (regions[by_address[middle]].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The last that begins there or before; NULL: all are behind. */
static struct region *region_at(uint64_t address)
{
    size_t begun = begun_at(address);
    return begun > 0 ? &regions[by_address[begun - 1]] : NULL;
}

static struct region *find(enum standin_kind kind, uint64_t address)
{
    struct region *region = region_at(address);
    if (kind != STANDIN_HANDLE)
        return region && region->kind == kind && region->address == address ? region : NULL;
    for (size_t i = 0; i < region_end; i++)
        if (regions[i].bytes > 0 && regions[i].kind == kind && regions[i].address == address)
            return &regions[i];
    return NULL;
}

static void index_region(size_t region)
{
    if (regions[region].kind == STANDIN_HANDLE)
        return;
    size_t at = begun_at(regions[region].address);
    memmove(by_address + at + 1, by_address + at, (address_count++ - at) * sizeof *by_address);
    by_address[at] = (uint16_t)region;
}

static void forget_region(const struct region *region)
{
    if (region->kind == STANDIN_HANDLE)
        return;
    size_t at = begun_at(region->address) - 1;
    memmove(by_address + at, by_address + at + 1, (--address_count - at) * sizeof *by_address);
}

static void add(const char *call, struct region region)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < REGIONS_MAX; i++) {
        if (regions[i].bytes == 0) {
            regions[i] = region;
            region_end = i + 1 > region_end ? i + 1 : region_end;
            index_region(i);
            standin_count(1);
            pthread_mutex_unlock(&lock);
            return;
        }
    }
    standin_die(call, "more than %d objects", REGIONS_MAX);
}

static struct region take(const char *call, enum standin_kind kind, uint64_t address)
{
    pthread_mutex_lock(&lock);
    struct region *found = find(kind, address);
    if (!found)
        standin_die(call, "%#llx is not allocated (given back twice?)", (unsigned long long)address);
    struct region region = *found;
    if (region.mapped)
        standin_die(call, "%#llx is still mapped", (unsigned long long)address);
    forget_region(found);
    found->bytes = 0;
    standin_count(-1);
    pthread_mutex_unlock(&lock);
    return region;
}

static const struct region *holding(uint64_t address, uint64_t bytes)
{
    const struct region *region = region_at(address);
    bool holds = region && address - region->address < region->bytes &&
                 bytes <= region->bytes - (address - region->address);
    return holds ? region : NULL;
}

bool standin_is_known(uint64_t address)
{
    pthread_mutex_lock(&lock);
    bool known = holding(address, 1) != NULL;
    pthread_mutex_unlock(&lock);
    return known;
}

void standin_touch_on(const char *call, int device, uint64_t address, uint64_t bytes, bool writing)
{
    pthread_mutex_lock(&lock);
    const struct region *region = holding(address, bytes);
    int need = writing ? PROT_READ | PROT_WRITE : PROT_READ;
    if (!region)
        standin_die(call, "%llu bytes at %#llx are not memory of the device, nor pinned", (unsigned long long)bytes,
                    (unsigned long long)address);
    bool mapped = region->kind == STANDIN_RESERVED && device != STANDIN_ANY_DEVICE;
    int access = mapped ? region->accesses[device] : region->access;
    if (device != STANDIN_ANY_DEVICE && region->device != device &&
        (region->kind == STANDIN_DEVICE || (mapped && access == PROT_NONE)))
        standin_die(call, "%#llx is memory of device %d, and this runs on device %d, which was given no access",
                    (unsigned long long)address, region->device, device);
    if ((access & need) != need)
        standin_die(call, "%#llx may not be %s", (unsigned long long)address, writing ? "written" : "read");
    pthread_mutex_unlock(&lock);
}

void standin_touch(const char *call, uint64_t address, uint64_t bytes, bool writing)
{
    standin_touch_on(call, STANDIN_ANY_DEVICE, address, bytes, writing);
}

static uint64_t in_use(int device)
{
    uint64_t sum = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < region_end; i++)
        if (regions[i].device == device && (regions[i].kind == STANDIN_HANDLE || regions[i].kind == STANDIN_DEVICE))
            sum += regions[i].bytes;
    pthread_mutex_unlock(&lock);
    return sum;
}

CUresult cuMemGetInfo(size_t *available, size_t *all)
{
    ENTER_CONTEXT(FAILED);
    uint64_t used = in_use(device);
    *all = total;
    *available = used < total ? total - used : 0;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    ENTER_FAILS(FAILED);
    (void)prop;
    (void)option;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

static CUresult allocate(const char *call, int device, enum standin_kind kind, size_t bytes, void **out)
{
    if (kind == STANDIN_DEVICE && in_use(device) + bytes > total)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (posix_memalign(out, 256, bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(*out, 0xCD, bytes);
    add(call, (struct region){.kind = kind, .device = device, .address = (uint64_t)(uintptr_t)*out, .bytes = bytes,
                              .access = PROT_READ | PROT_WRITE});
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *out, size_t bytes)
{
    void *memory = NULL;
    ENTER_CONTEXT(CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = allocate(__func__, device, STANDIN_DEVICE, bytes, &memory);
    *out = (CUdeviceptr)(uintptr_t)memory;
    return result;
}

CUresult cuMemFree(CUdeviceptr address)
{
    bool fails = standin_enter(__func__);
    struct region region = take(__func__, STANDIN_DEVICE, address);
    free((void *)(uintptr_t)region.address);
    return fails ? FAILED : CUDA_SUCCESS;
}

uint64_t standin_cuda_allocate(int device, size_t bytes)
{
    void *memory = NULL;
    if (device < 0 || device >= standin_devices() ||
        allocate(__func__, device, STANDIN_DEVICE, bytes, &memory) != CUDA_SUCCESS)
        standin_die(__func__, "%zu bytes on device %d", bytes, device);
    return (uint64_t)(uintptr_t)memory;
}

void standin_cuda_free(uint64_t address)
{
    free((void *)(uintptr_t)take(__func__, STANDIN_DEVICE, address).address);
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    ENTER_FAILS(FAILED);
    pthread_mutex_lock(&lock);
    const struct region *region = holding(address, 1);
    bool known = region && (region->kind != STANDIN_RESERVED || region->mapped);
    if (known && attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(unsigned *)data = region->kind == STANDIN_PINNED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    else if (known && attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)data = region->device;
    else if (known && attribute == CU_POINTER_ATTRIBUTE_CONTEXT)
        *(CUcontext *)data = region->kind == STANDIN_RESERVED ? NULL : standin_context(region->device);
    else if (known)
        standin_die(__func__, "attribute %d", (int)attribute);
    pthread_mutex_unlock(&lock);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    ENTER_CONTEXT(CUDA_ERROR_OUT_OF_MEMORY);
    (void)flags;
    return allocate(__func__, device, STANDIN_PINNED, bytes, out);
}

CUresult cuMemFreeHost(void *memory)
{
    bool fails = standin_enter(__func__);
    struct region region = take(__func__, STANDIN_PINNED, (uint64_t)(uintptr_t)memory);
    free((void *)(uintptr_t)region.address);
    return fails ? FAILED : CUDA_SUCCESS;
}

/* Pinned where it is. Whoever gives the memory back without having unregistered it is found at exit. */
CUresult cuMemHostRegister(void *memory, size_t bytes, unsigned int flags)
{
    ENTER_CONTEXT(CUDA_ERROR_OUT_OF_MEMORY);
    if (!(flags & CU_MEMHOSTREGISTER_DEVICEMAP) || standin_is_known((uint64_t)(uintptr_t)memory))
        return CUDA_ERROR_INVALID_VALUE;
    add(__func__, (struct region){.kind = STANDIN_REGISTERED, .device = device, .address = (uint64_t)(uintptr_t)memory,
                                  .bytes = bytes, .access = PROT_READ | PROT_WRITE});
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *memory)
{
    bool fails = standin_enter(__func__);
    (void)take(__func__, STANDIN_REGISTERED, (uint64_t)(uintptr_t)memory);
    return fails ? FAILED : CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *out, void *memory, unsigned int flags)
{
    ENTER_FAILS(FAILED);
    if (flags != 0 || !standin_is_known((uint64_t)(uintptr_t)memory))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

static void add_handle(const char *call, CUmemGenericAllocationHandle *out, int machine, int fd, uint64_t bytes)
{
    int device = standin_local_number(machine);
    pthread_mutex_lock(&lock);
    *out = next_handle++;
    pthread_mutex_unlock(&lock);
    add(call, (struct region){.kind = STANDIN_HANDLE, .device = device, .machine = machine, .address = *out,
                              .bytes = bytes, .fd = fd});
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
    ENTER_FAILS(CUDA_ERROR_OUT_OF_MEMORY);
    if (bytes % GRANULARITY != 0 || flags != 0 || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (in_use(prop->location.id) + bytes > total)
        return CUDA_ERROR_OUT_OF_MEMORY;
    int machine = standin_machine_number(prop->location.id);
    char name[32];
    snprintf(name, sizeof name, MEMORY_NAME "%d", machine);
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        standin_die(__func__, "no memfd of %zu bytes", bytes);
    add_handle(__func__, out, machine, fd, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    bool fails = standin_enter(__func__);
    close(take(__func__, STANDIN_HANDLE, handle).fd);
    return fails ? FAILED : CUDA_SUCCESS;
}

/* A fabric handle is good in this process only: the number of the handle it was made of. */
CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags)
{
    ENTER_FAILS(FAILED);
    pthread_mutex_lock(&lock);
    const struct region *region = find(STANDIN_HANDLE, handle);
    if (!region || flags != 0)
        standin_die(__func__, "handle %llu of type %d", handle, (int)type);
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        *(int *)out = dup(region->fd);
    else if (type == CU_MEM_HANDLE_TYPE_FABRIC && getenv("STANDIN_CUDA_FABRIC"))
        memcpy(out, &handle, sizeof handle);
    else
        standin_die(__func__, "type %d", (int)type);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static int descriptor_of(void *shared, CUmemAllocationHandleType type)
{
    CUmemGenericAllocationHandle handle;
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return (int)(intptr_t)shared;
    memcpy(&handle, shared, sizeof handle);
    pthread_mutex_lock(&lock);
    const struct region *region = find(STANDIN_HANDLE, handle);
    int fd = region ? region->fd : -1;
    pthread_mutex_unlock(&lock);
    return fd;
}

/* The machine's device that the memory is of. Memory that no look-alike made is taken for the current one's: tests hand
 * over what only looks like a slot. */
static int machine_of(int fd, int device)
{
    char path[40], name[64] = "";
    int machine;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (readlink(path, name, sizeof name - 1) > 0 && sscanf(name, "/memfd:" MEMORY_NAME "%d", &machine) == 1)
        return machine;
    return standin_machine_number(device);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *shared, CUmemAllocationHandleType type)
{
    struct stat st;
    ENTER_CONTEXT(FAILED);
    int fd = descriptor_of(shared, type);
    if (fstat(fd, &st) != 0 || st.st_size <= 0 || (uint64_t)st.st_size % GRANULARITY != 0)
        return CUDA_ERROR_INVALID_VALUE;
    int machine = machine_of(fd, device);
    if (standin_local_number(machine) < 0)
        return CUDA_ERROR_INVALID_DEVICE; /* not one that this process (this container) sees */
    add_handle(__func__, out, machine, dup(fd), (uint64_t)st.st_size);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags)
{
    ENTER_FAILS(CUDA_ERROR_OUT_OF_MEMORY);
    (void)alignment;
    (void)wanted;
    (void)flags;
    void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUdeviceptr)(uintptr_t)memory;
    add(__func__, (struct region){.kind = STANDIN_RESERVED, .address = *out, .bytes = bytes});
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    bool fails = standin_enter(__func__);
    struct region region = take(__func__, STANDIN_RESERVED, address);
    if (region.bytes != bytes)
        standin_die(__func__, "%zu bytes, %llu were reserved", bytes, (unsigned long long)region.bytes);
    munmap((void *)(uintptr_t)address, bytes);
    return fails ? FAILED : CUDA_SUCCESS;
}

/* The whole reservation is mapped, by one handle. */
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    ENTER_FAILS(FAILED);
    pthread_mutex_lock(&lock);
    struct region *range = find(STANDIN_RESERVED, address);
    const struct region *memory = find(STANDIN_HANDLE, handle);
    if (!range || !memory || range->mapped || offset != 0 || flags != 0 || range->bytes != bytes)
        standin_die(__func__, "%#llx is not reserved, or mapped, or the handle is gone", (unsigned long long)address);
    bool fits = memory->bytes >= bytes;
    if (fits && mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd, 0) == MAP_FAILED)
        standin_die(__func__, "mmap");
    range->mapped = fits;
    range->device = memory->device;
    range->machine = memory->machine;
    range->access = PROT_NONE;
    memset(range->accesses, 0, sizeof range->accesses);
    pthread_mutex_unlock(&lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    bool fails = standin_enter(__func__);
    pthread_mutex_lock(&lock);
    struct region *range = find(STANDIN_RESERVED, address);
    if (!range || !range->mapped || range->bytes != bytes)
        standin_die(__func__, "%#llx is not mapped", (unsigned long long)address);
    range->mapped = false;
    range->access = PROT_NONE;
    mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    pthread_mutex_unlock(&lock);
    return fails ? FAILED : CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
    ENTER_FAILS(FAILED);
    pthread_mutex_lock(&lock);
    struct region *range = find(STANDIN_RESERVED, address);
    if (!range || !range->mapped || range->bytes != bytes || count != 1)
        standin_die(__func__, "%#llx is not mapped", (unsigned long long)address);
    int id = desc->location.id;
    if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE || id < 0 || id >= standin_devices())
        standin_die(__func__, "location %d of type %d", id, (int)desc->location.type);
    bool reaches = standin_can_reach(id, range->machine);
    if (reaches) {
        range->accesses[id] = desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE : PROT_READ;
        range->access |= range->accesses[id];
        mprotect((void *)(uintptr_t)address, bytes, range->access);
    }
    pthread_mutex_unlock(&lock);
    return reaches ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
