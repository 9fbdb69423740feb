/* What HIP's runtime links with besides. Nothing here is called with success but what asks for no answer; it has no
   prototypes, since the headers have others. */
#define SUCCEEDS(name) int name(void); int name(void) { return 0; }
#define FAILS(name) int name(void); int name(void) { return 0x1000; }

SUCCEEDS(hsa_amd_coherency_set_type)
SUCCEEDS(hsa_amd_profiling_async_copy_enable)
SUCCEEDS(hsa_amd_profiling_get_async_copy_time)
SUCCEEDS(hsa_amd_profiling_get_dispatch_time)
SUCCEEDS(hsa_amd_profiling_set_profiler_enabled)
FAILS(hsa_amd_image_create)
FAILS(hsa_amd_interop_map_buffer)
FAILS(hsa_amd_interop_unmap_buffer)
FAILS(hsa_amd_ipc_memory_attach)
FAILS(hsa_amd_ipc_memory_create)
FAILS(hsa_amd_ipc_memory_detach)
FAILS(hsa_amd_memory_async_copy_rect)
FAILS(hsa_amd_svm_attributes_get)
FAILS(hsa_amd_svm_attributes_set)
FAILS(hsa_amd_svm_prefetch_async)
FAILS(hsa_ext_image_create)
FAILS(hsa_ext_image_create_with_layout)
FAILS(hsa_ext_image_data_get_info)
FAILS(hsa_ext_image_destroy)
FAILS(hsa_ext_image_export)
FAILS(hsa_ext_image_import)
FAILS(hsa_ext_sampler_create)
FAILS(hsa_ext_sampler_destroy)
