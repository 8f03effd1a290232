rule pages:
    input:
        f"{REPORT}/results.json",
        f"{REPORT}/timings.json",
        f"{REPORT}/config.json",
        f"{REPORT}/trials.parquet",
    output:
        f"{REPORT}/README.md",
        f"{REPORT}/samples.md",
        f"{REPORT}/model-card.md",
    log:
        f"logs/{RUN}/pages.log",
    params:
        code=FLOW.pages_code(),
    resources:
        mem_mb=1000,
    conda:
        "../../environment.yml"
    shell:
        "{KVATLAS} pages --code {params.code} --output {output[0]} > {log} 2>&1"
