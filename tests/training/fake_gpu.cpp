// What torch asks of CUDA while it handles tensors without values, answered without a GPU: streams
// that do nothing, one device, no context. Tensors without values have no memory and run no kernel.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::Stream;

struct Guard : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device exchangeDevice(Device) const override { return {DeviceType::CUDA, 0}; }
  Device getDevice() const override { return {DeviceType::CUDA, 0}; }
  Stream getStream(Device) const noexcept override {
    return Stream(Stream::DEFAULT, {DeviceType::CUDA, 0});
  }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
};

namespace at {
struct Hooks : CUDAHooksInterface {
  Hooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex deviceCount() const override { return 1; }
  long versionCuDNN() const override { return 92000; }
  long versionRuntimeCuDNN() const override { return 92000; }
};
// Loaded before torch, and preferred to those of a build of torch for GPUs.
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, Hooks)
}  // namespace at

// Called after torch is imported, which registers its own guard.
extern "C" void use_guard() { c10::impl::registerDeviceGuard(DeviceType::CUDA, new Guard); }
