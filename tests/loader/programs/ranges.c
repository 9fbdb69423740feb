/* What driven.c does by NVTX, with NVIDIA's own headers. Numbers are places for what is returned. */
#include <nvtx3/nvToolsExt.h>
#include <wchar.h>

#include "program.h"
#include "ranges_verbs.h"

enum { PLACES = 8 };
static nvtxDomainHandle_t domains[PLACES];
static nvtxStringHandle_t strings[PLACES];
static nvtxRangeId_t started[PLACES];

static const wchar_t *wide(const char *text)
{
	static __thread wchar_t ret[256];

	mbstowcs(ret, text, 255);
	return ret;
}

static nvtxEventAttributes_t named(const char *name)
{
	nvtxEventAttributes_t attributes = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};

	attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
	attributes.message.ascii = name;
	return attributes;
}

static nvtxEventAttributes_t named_wide(const char *name)
{
	nvtxEventAttributes_t attributes = named(NULL);

	attributes.messageType = NVTX_MESSAGE_TYPE_UNICODE;
	attributes.message.unicode = wide(name);
	return attributes;
}

static nvtxEventAttributes_t registered(int place)
{
	nvtxEventAttributes_t attributes = named(NULL);

	attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
	attributes.message.registered = strings[place];
	return attributes;
}

/* What no program should do. */
static void misuse(void)
{
	nvtxEventAttributes_t attributes = named("step");
	nvtxDomainHandle_t nowhere = (nvtxDomainHandle_t)(uintptr_t)12345;

	nvtxRangePushEx(NULL);
	nvtxRangePop();
	nvtxRangePushA(NULL);
	nvtxRangePop();
	nvtxDomainRangePushEx(nowhere, &attributes);
	nvtxDomainRangePop(nowhere);
	attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
	attributes.message.registered = (nvtxStringHandle_t)(uintptr_t)12345;
	nvtxRangePushEx(&attributes);
	nvtxRangePop();
	attributes.messageType = 99;
	nvtxRangePushEx(&attributes);
	nvtxRangePop();
	attributes = named("step");
	attributes.size = 8;
	nvtxRangePushEx(&attributes);
	nvtxRangePop();
	nvtxRangeEnd(nvtxRangeStartA(NULL));
	nvtxRangeEnd(0);
	nvtxRangeEnd(UINT64_MAX);
	nvtxDomainDestroy(nowhere);
	/* More ends than beginnings. */
	nvtxRangePop();
	nvtxRangePop();
}

static const char *const verbs[] = {
	"push", "push-wide", "push-ex", "pop", "start", "start-wide", "start-ex", "end", "domain", "domain-wide", "destroy",
	"register", "register-wide", "domain-push", "domain-push-wide", "domain-push-registered", "domain-pop",
	"domain-start", "domain-end", "misuse",
};

bool range_verb(const char *verb, const char *argument)
{
	nvtxEventAttributes_t attributes;
	size_t which = 0;
	char *name;
	/* `PLACE NAME`, or `NAME` alone. */
	unsigned place = (unsigned)strtoul(argument, &name, 10) % PLACES;

	name += *name == ' ';
	while (which < sizeof(verbs) / sizeof(*verbs) && strcmp(verbs[which], verb))
		which++;
	switch (which) {
	case 0:
		nvtxRangePushA(argument);
		return true;
	case 1:
		nvtxRangePushW(wide(argument));
		return true;
	case 2:
		attributes = named(argument);
		nvtxRangePushEx(&attributes);
		return true;
	case 3:
		nvtxRangePop();
		return true;
	case 4:
		started[place] = nvtxRangeStartA(name);
		return true;
	case 5:
		started[place] = nvtxRangeStartW(wide(name));
		return true;
	case 6:
		attributes = named(name);
		started[place] = nvtxRangeStartEx(&attributes);
		return true;
	case 7:
		nvtxRangeEnd(started[place]);
		return true;
	case 8:
		domains[place] = nvtxDomainCreateA(name);
		return true;
	case 9:
		domains[place] = nvtxDomainCreateW(wide(name));
		return true;
	case 10:
		nvtxDomainDestroy(domains[place]);
		return true;
	case 11:
		strings[place] = nvtxDomainRegisterStringA(domains[place], name);
		return true;
	case 12:
		strings[place] = nvtxDomainRegisterStringW(domains[place], wide(name));
		return true;
	case 13:
		attributes = named(name);
		nvtxDomainRangePushEx(domains[place], &attributes);
		return true;
	case 14:
		attributes = named_wide(name);
		nvtxDomainRangePushEx(domains[place], &attributes);
		return true;
	case 15:
		attributes = registered((int)place);
		nvtxDomainRangePushEx(domains[place], &attributes);
		return true;
	case 16:
		nvtxDomainRangePop(domains[place]);
		return true;
	case 17:
		attributes = named(name);
		started[place] = nvtxDomainRangeStartEx(domains[place], &attributes);
		return true;
	case 18:
		nvtxDomainRangeEnd(domains[place], started[place]);
		return true;
	case 19:
		misuse();
		return true;
	}
	return false;
}
