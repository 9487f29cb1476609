// The methods of the ioctl interface about memory: regions, windows, device memory. As
// uverbs_std_types_mr.c and uverbs_std_types_dm.c in the kernel's drivers/infiniband/core, and dm.c in
// drivers/infiniband/hw/mlx5.

#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5_user_ioctl_verbs.h>

#include <cerrno>
#include <vector>

#include "softnic/driver/ioctl_attributes.hpp"
#include "softnic/driver/refusal.hpp"

namespace qpair::softnic::driver {
namespace {

// ---- Memory regions
// -----------------------------------------------------------------------------------------------

constexpr AttributeSpec kDestroyMr[] = {
    handle(UVERBS_ATTR_DESTROY_MR_HANDLE, UVERBS_OBJECT_MR, Access::Destroy),
};

constexpr AttributeSpec kDestroyMw[] = {
    handle(UVERBS_ATTR_DESTROY_MW_HANDLE, UVERBS_OBJECT_MW, Access::Destroy),
};

constexpr AttributeSpec kQueryMr[] = {
    handle(UVERBS_ATTR_QUERY_MR_HANDLE, UVERBS_OBJECT_MR, Access::Read),
    out<std::uint32_t>(UVERBS_ATTR_QUERY_MR_RESP_LKEY),
    out<std::uint32_t>(UVERBS_ATTR_QUERY_MR_RESP_RKEY),
    out<std::uint64_t>(UVERBS_ATTR_QUERY_MR_RESP_LENGTH),
    out<std::uint64_t>(UVERBS_ATTR_QUERY_MR_RESP_IOVA, Need::Optional),
};

int query_mr(IoctlCall& call) {
  const auto* const mr = call.object<MrObject>(UVERBS_ATTR_QUERY_MR_HANDLE);
  const auto key = static_cast<std::uint32_t>(mr->key);
  return first_of(call.put(UVERBS_ATTR_QUERY_MR_RESP_LKEY, key),
                  call.put(UVERBS_ATTR_QUERY_MR_RESP_RKEY, key),
                  call.put(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, mr->parameters.length),
                  call.put(UVERBS_ATTR_QUERY_MR_RESP_IOVA, mr->parameters.iova));
}

constexpr AttributeSpec kAdviseMr[] = {
    handle(UVERBS_ATTR_ADVISE_MR_PD_HANDLE, UVERBS_OBJECT_PD, Access::Read),
    constant(UVERBS_ATTR_ADVISE_MR_ADVICE),
    flags(UVERBS_ATTR_ADVISE_MR_FLAGS, Need::Mandatory),
    in_bytes(UVERBS_ATTR_ADVISE_MR_SGE_LIST, sizeof(ib_uverbs_sge), Need::Mandatory),
};

int advise_mr_method(IoctlCall& call) {
  AdviseRequest asked{};
  std::uint32_t flush = 0;
  if (const int bad = call.get_flags(UVERBS_ATTR_ADVISE_MR_FLAGS, IB_UVERBS_ADVISE_MR_FLAG_FLUSH, flush);
      bad != 0) {
    return bad;
  }
  const UserBuffer list = call.buffer(UVERBS_ATTR_ADVISE_MR_SGE_LIST);
  if (list.size % sizeof(ib_uverbs_sge) != 0) return -EINVAL;  // uverbs_attr_ptr_get_array_size()
  std::vector<ib_uverbs_sge> pieces(list.size / sizeof(ib_uverbs_sge));
  if (!copy_from_user(pieces.data(), list.address, list.size)) return -EFAULT;
  asked.pd = call.object<PdObject>(UVERBS_ATTR_ADVISE_MR_PD_HANDLE);
  asked.advice = call.constant(UVERBS_ATTR_ADVISE_MR_ADVICE);
  asked.flush = flush != 0;
  asked.pieces = pieces;
  return advise_mr(call.context, asked);
}

constexpr AttributeSpec kRegDmabuf[] = {
    handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, UVERBS_OBJECT_MR, Access::New),
    handle(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, UVERBS_OBJECT_PD, Access::Read),
    in<std::uint64_t>(UVERBS_ATTR_REG_DMABUF_MR_OFFSET),
    in<std::uint64_t>(UVERBS_ATTR_REG_DMABUF_MR_LENGTH),
    in<std::uint64_t>(UVERBS_ATTR_REG_DMABUF_MR_IOVA),
    in<std::int32_t>(UVERBS_ATTR_REG_DMABUF_MR_FD),
    flags(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS),
    out<std::uint32_t>(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY),
    out<std::uint32_t>(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY),
};

int reg_dmabuf_mr(IoctlCall& call) {
  constexpr std::uint32_t kAccess = IB_UVERBS_ACCESS_LOCAL_WRITE | IB_UVERBS_ACCESS_REMOTE_WRITE |
                                    IB_UVERBS_ACCESS_REMOTE_READ | IB_UVERBS_ACCESS_REMOTE_ATOMIC |
                                    IB_UVERBS_ACCESS_RELAXED_ORDERING;
  MrRequest asked{};
  std::int32_t fd = -1;
  if (const int bad = first_of(call.get(UVERBS_ATTR_REG_DMABUF_MR_OFFSET, asked.start),
                               call.get(UVERBS_ATTR_REG_DMABUF_MR_LENGTH, asked.length),
                               call.get(UVERBS_ATTR_REG_DMABUF_MR_IOVA, asked.iova),
                               call.get(UVERBS_ATTR_REG_DMABUF_MR_FD, fd),
                               call.get_flags(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, kAccess, asked.access));
      bad != 0) {
    return bad;
  }
  asked.pd = call.object<PdObject>(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE);
  const auto made = create_dmabuf_mr(call.context, asked, fd);
  if (!made) return made.error();
  const int failure = first_of(call.put(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, made->key),
                               call.put(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, made->key),
                               call.put_handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, made->handle));
  return undo(call.context, ObjectType::Mr, made->handle, failure);
}

// ---- Device memory

constexpr AttributeSpec kAllocDm[] = {
    handle(UVERBS_ATTR_ALLOC_DM_HANDLE, UVERBS_OBJECT_DM, Access::New),
    in<std::uint64_t>(UVERBS_ATTR_ALLOC_DM_LENGTH),
    in<std::uint32_t>(UVERBS_ATTR_ALLOC_DM_ALIGNMENT),
    out<std::uint64_t>(MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, Need::Optional),
    out<std::uint16_t>(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, Need::Optional),
    in<std::uint64_t>(MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE, Need::Optional),
};

constexpr std::uint64_t kStartOffset = 0;  // device memory begins at the start of a page

int alloc_dm(IoctlCall& call) {
  if (!opened(call)) return -EINVAL;
  std::uint64_t length = 0;
  std::uint32_t alignment = 0;
  if (const int bad = first_of(call.get(UVERBS_ATTR_ALLOC_DM_LENGTH, length),
                               call.get(UVERBS_ATTR_ALLOC_DM_ALIGNMENT, alignment));
      bad != 0) {
    return bad;
  }
  // Memory of the packet steering engine is the other kind.
  if (call.constant(MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE) != MLX5_IB_UAPI_DM_TYPE_MEMIC) {
    return unsupported("Device memory for packet steering (SW ICM)");
  }
  const auto made = create_dm(call.context, length, alignment);
  if (!made) return made.error();
  const int failure = first_of(call.put(MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, kStartOffset),
                               call.put(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, made->page_index),
                               call.put_handle(UVERBS_ATTR_ALLOC_DM_HANDLE, made->handle));
  return undo(call.context, ObjectType::Dm, made->handle, failure);
}

constexpr AttributeSpec kFreeDm[] = {
    handle(UVERBS_ATTR_FREE_DM_HANDLE, UVERBS_OBJECT_DM, Access::Destroy),
};

constexpr AttributeSpec kQueryDm[] = {
    handle(MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE, UVERBS_OBJECT_DM, Access::Read),
    out<std::uint64_t>(MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET),
    out<std::uint16_t>(MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX),
    out<std::uint64_t>(MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH),
};

int query_dm(IoctlCall& call) {
  const auto* const dm = call.object<DmObject>(MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE);
  return first_of(call.put(MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET, kStartOffset),
                  call.put(MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX, dm->first_page),
                  call.put(MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH, dm->length));
}

constexpr AttributeSpec kMapDmOperation[] = {
    handle(MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_HANDLE, UVERBS_OBJECT_DM, Access::Read),
    in<std::uint8_t>(MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_OP),
    out<std::uint64_t>(MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_START_OFFSET),
    out<std::uint16_t>(MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_PAGE_INDEX),
};

// A page whose loads and stores do arithmetic: a page of memory cannot do that, and the device's
// capabilities (memic_operations) do not offer it.
int map_dm_operation(IoctlCall& /*call*/) {
  return unsupported("Atomic operations of device memory (mlx5dv_dm_map_op_addr)");
}

constexpr AttributeSpec kRegDmMr[] = {
    handle(UVERBS_ATTR_REG_DM_MR_HANDLE, UVERBS_OBJECT_MR, Access::New),
    in<std::uint64_t>(UVERBS_ATTR_REG_DM_MR_OFFSET),
    in<std::uint64_t>(UVERBS_ATTR_REG_DM_MR_LENGTH),
    handle(UVERBS_ATTR_REG_DM_MR_PD_HANDLE, UVERBS_OBJECT_PD, Access::Read),
    flags(UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS),
    handle(UVERBS_ATTR_REG_DM_MR_DM_HANDLE, UVERBS_OBJECT_DM, Access::Read),
    out<std::uint32_t>(UVERBS_ATTR_REG_DM_MR_RESP_LKEY),
    out<std::uint32_t>(UVERBS_ATTR_REG_DM_MR_RESP_RKEY),
};

int reg_dm_mr(IoctlCall& call) {
  constexpr std::uint32_t kAccess =
      IB_UVERBS_ACCESS_LOCAL_WRITE | IB_UVERBS_ACCESS_REMOTE_WRITE | IB_UVERBS_ACCESS_REMOTE_READ |
      IB_UVERBS_ACCESS_REMOTE_ATOMIC | IB_UVERBS_ACCESS_MW_BIND | IB_UVERBS_ACCESS_ZERO_BASED |
      IB_UVERBS_ACCESS_ON_DEMAND | IB_UVERBS_ACCESS_HUGETLB | IB_UVERBS_ACCESS_OPTIONAL_RANGE;
  MrRequest asked{};
  if (const int bad = first_of(call.get(UVERBS_ATTR_REG_DM_MR_OFFSET, asked.start),
                               call.get(UVERBS_ATTR_REG_DM_MR_LENGTH, asked.length),
                               call.get_flags(UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, kAccess, asked.access));
      bad != 0) {
    return bad;
  }
  asked.pd = call.object<PdObject>(UVERBS_ATTR_REG_DM_MR_PD_HANDLE);
  const auto made =
      create_dm_mr(call.context, asked, *call.object<DmObject>(UVERBS_ATTR_REG_DM_MR_DM_HANDLE));
  if (!made) return made.error();
  const int failure = first_of(call.put(UVERBS_ATTR_REG_DM_MR_RESP_LKEY, made->key),
                               call.put(UVERBS_ATTR_REG_DM_MR_RESP_RKEY, made->key),
                               call.put_handle(UVERBS_ATTR_REG_DM_MR_HANDLE, made->handle));
  return undo(call.context, ObjectType::Mr, made->handle, failure);
}

constexpr MethodSpec kMethods[] = {
    {UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY, kDestroyMr, destroyed},
    {UVERBS_OBJECT_MW, UVERBS_METHOD_MW_DESTROY, kDestroyMw, destroyed},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR, kQueryMr, query_mr},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR, kAdviseMr, advise_mr_method},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR, kRegDmabuf, reg_dmabuf_mr},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG, kRegDmMr, reg_dm_mr},
    {UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC, kAllocDm, alloc_dm},
    {UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE, kFreeDm, destroyed},
    {UVERBS_OBJECT_DM, MLX5_IB_METHOD_DM_QUERY, kQueryDm, query_dm},
    {UVERBS_OBJECT_DM, MLX5_IB_METHOD_DM_MAP_OP_ADDR, kMapDmOperation, map_dm_operation},
};

}  // namespace

std::span<const MethodSpec> memory_methods() {
  return kMethods;
}

}  // namespace qpair::softnic::driver
