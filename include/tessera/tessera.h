// Everything of Tessera.
#pragma once

#include <tessera/checkpoint.h>
#include <tessera/error.h>
#include <tessera/fsdp.h>
#include <tessera/runtime.h>
