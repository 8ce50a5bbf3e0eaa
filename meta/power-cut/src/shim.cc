// RocksDB's own file system that forgets what was not synced, behind four functions of C.

#include <memory>

#include "rocksdb/env.h"
#include "rocksdb/file_system.h"
#include "utilities/fault_injection_fs.h"

using ROCKSDB_NAMESPACE::Env;
using ROCKSDB_NAMESPACE::FaultInjectionTestFS;
using ROCKSDB_NAMESPACE::FileSystem;
using ROCKSDB_NAMESPACE::IOOptions;
using ROCKSDB_NAMESPACE::IOStatus;

// As in RocksDB's db/c.cc, which deletes it.
struct rocksdb_env_t {
  Env* rep;
  bool is_default;
};

struct onefold_power {
  std::shared_ptr<FaultInjectionTestFS> files;
};

extern "C" {

onefold_power* onefold_power_new() {
  auto files = std::make_shared<FaultInjectionTestFS>(FileSystem::Default());
  // Otherwise what is written goes through at once.
  files->SetInjectUnsyncedDataLoss(true);
  return new onefold_power{files};
}

rocksdb_env_t* onefold_power_env(onefold_power* power) {
  return new rocksdb_env_t{ROCKSDB_NAMESPACE::NewCompositeEnv(power->files).release(), false};
}

// From now on everything that changes files fails.
void onefold_power_cut(onefold_power* power) {
  power->files->SetFilesystemActive(false, IOStatus::IOError("the power is off"));
}

// Takes from the files what was not synced; false if that fails. Nobody may use them.
bool onefold_power_lose(onefold_power* power) {
  power->files->SetFilesystemActive(true);
  IOStatus status = power->files->DropUnsyncedFileData();
  if (status.ok()) {
    status = power->files->DeleteFilesCreatedAfterLastDirSync(IOOptions(), nullptr);
  }
  power->files->ResetState();
  return status.ok();
}

void onefold_power_delete(onefold_power* power) { delete power; }

}  // extern "C"
