rule pages:
    input:
        f"{REPORT}/results.json",
        f"{REPORT}/timings.json",
        f"{REPORT}/config.json",
        f"{REPORT}/trials.parquet",
        FLOW.data_files(),
    output:
        page=report(
            f"{REPORT}/README.md",
            caption="../report/readme.rst",
            category="Pages",
            labels={"Page": "Report"},
        ),
        studies=[
            report(
                page,
                caption="../report/study.rst",
                category="Pages",
                labels={"Page": label},
            )
            for page, label in FLOW.study_pages().items()
        ],
        claims=report(
            f"{REPORT}/claims.md",
            caption="../report/claims.rst",
            category="Pages",
            labels={"Page": "Claims"},
        ),
        published=report(
            f"{REPORT}/published.md",
            caption="../report/published.rst",
            category="Pages",
            labels={"Page": "Published against reproduced"},
        ),
        samples=report(
            f"{REPORT}/samples.md",
            caption="../report/samples.rst",
            category="Pages",
            labels={"Page": "Samples"},
        ),
        cells=report(
            f"{REPORT}/cells.md",
            caption="../report/cells.rst",
            category="Pages",
            labels={"Page": "Cells"},
        ),
        card=report(
            f"{REPORT}/model-card.md",
            caption="../report/card.rst",
            category="Pages",
            labels={"Page": "Model cards"},
        ),
    log:
        f"logs/{RUN}/pages.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=1000,
    params:
        code=FLOW.step_code("pages"),
    shell:
        "kvatlas job pages --code {params.code} --output {output.page} > {log} 2>&1"
